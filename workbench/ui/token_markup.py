"""An answer as its tokens: one span for each, and beside them what is known about each for the page's script to show.

The facts travel apart from the spans, since Gradio takes every attribute of its own making off a message.
"""

from __future__ import annotations

import html
from typing import Any

from workbench.ui.answer_trace import AnswerToken, AnswerTrace
from workbench.ui.turns import Conversation


def token_spans(trace: AnswerTrace) -> str:
    """Return the answer's text as spans on one line of HTML; a line break is shown by its sign, too."""
    return "".join(_span(token) for token in trace.tokens)


def _span(token: AnswerToken) -> str:
    text = html.escape(token.text).replace("\r", "").replace("\n", "↵&#10;")
    return f'<span class="wb-token wb-from-{token.source.value}">{text}</span>'


def shown_tokens(conversation: Conversation) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return what is known about the tokens that are shown: place of the message → place of the answer → tokens."""
    return {
        str(place): {
            str(index): token_facts(trace)
            for index, answer in enumerate(turn.all_answers)
            if index in turn.shown_as_tokens and (trace := answer.trace) is not None
        }
        for place, turn in enumerate(conversation)
        if turn.shown_as_tokens
    }


def token_facts(trace: AnswerTrace) -> list[dict[str, Any]]:
    """Return for each token its id, position, blocks and slot, log-probability and rank, and its source."""
    return [
        {
            "id": token.token_id,
            "position": trace.first_position + index,
            "blocks": list(trace.blocks_of(index)),
            "slot": trace.slot_of(index),
            "logprob": token.logprob,
            "rank": token.rank,
            "source": token.source.value,
        }
        for index, token in enumerate(trace.tokens)
    ]
