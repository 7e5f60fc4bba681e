"""A conversation to take away: as Markdown for people, as JSON for programs. Pure text, no widget."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from workbench.engine.service import EngineService
from workbench.ui.markup import figures
from workbench.ui.token_markup import shown_tokens
from workbench.ui.turns import AnswerStats, ChatError, Conversation, Turn, score_words

FORMAT: Final = "inference-workbench-conversation"
VERSION: Final = 1


def take_away(service: EngineService, conversation: Conversation, session: str = "") -> dict[str, Any] | None:
    """Return what the page's script copies, saves and shows: each message's text, both documents, and tokens.

    None when empty. A message with several answers has a list of texts. Tokens are `shown_tokens`; `session` is the
    browser tab's name, by which a reloaded page finds the conversation again.
    """
    if not conversation:
        return None
    return {
        "texts": [[answer.text for answer in turn.answers] or turn.text for turn in conversation],
        "markdown": as_markdown(conversation),
        "json": as_json(conversation, engine_facts(service)),
        "session": session,
        "tokens": shown_tokens(conversation),
    }


def as_markdown(conversation: Conversation) -> str:
    """Return the conversation as Markdown; the texts stand as they were written."""
    parts = []
    for turn in conversation:
        parts.append(f"## {_speaker(turn)}")
        if turn.answers:
            for index, answer in enumerate(turn.answers):
                mark = ", chosen" if index == turn.chosen else ""
                parts += [f"### {turn.label(index)}{mark}", *_paragraphs(answer.text, answer.stats, answer.error)]
        else:
            parts += _paragraphs(turn.text, turn.stats, turn.error)
    return "\n\n".join(parts) + "\n"


def _paragraphs(text: str, stats: AnswerStats | None, error: ChatError | None) -> list[str]:
    """A text, what went wrong with it, and its figures."""
    parts = [text.strip()] if text else []
    if error is not None:
        parts.append(f"> {error.message}")
    if stats is not None and text:
        parts.append(f"*{' · '.join(figures(stats, ''))}*")
    return parts


def as_json(conversation: Conversation, engine: Mapping[str, Any]) -> str:
    """Return the conversation as JSON: messages, the settings of each answer, its metrics, and the engine's facts."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "engine": dict(engine),
        "messages": [_message(turn) for turn in conversation],
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def engine_facts(service: EngineService) -> dict[str, Any]:
    """Return what the figures depend on. No path of the machine is among it."""
    status, config = service.status, service.config
    return {
        "model": status.model_name,
        "source_format": status.source_format,
        "dtype": status.dtype,
        "backend": status.backend,
        "device": status.device,
        "max_model_len": status.max_model_len,
        "num_blocks": status.num_blocks,
        "block_size": status.block_size,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
    }


def _speaker(turn: Turn) -> str:
    if turn.role == "user":
        return "You"
    name = turn.settings.model_name if turn.settings is not None else "Model"
    score = "" if turn.answers else score_words(turn.stats)
    return f"{name} (beam search, {score})" if score else name


def _message(turn: Turn) -> dict[str, Any]:
    """A message; of several answers, the chosen one is its content."""
    message: dict[str, Any] = {"role": turn.role, "content": turn.text}
    if turn.settings is not None:
        message["model"] = turn.settings.model_name
        message["system_prompt"] = turn.settings.system_prompt
        message["sampling"] = msgspec.to_builtins(turn.settings.params, str_keys=True)
        message["priority"] = turn.settings.priority
        message["speculation"] = msgspec.to_builtins(turn.settings.speculation)
    message |= _outcome(turn.stats, turn.error)
    if turn.answers:
        message["chosen"] = turn.chosen
        message["answers"] = [
            {"content": answer.text, **_outcome(answer.stats, answer.error)} for answer in turn.answers
        ]
    return message


def _outcome(stats: AnswerStats | None, error: ChatError | None) -> dict[str, Any]:
    outcome: dict[str, Any] = {}
    if stats is not None:
        outcome["metrics"] = dataclasses.asdict(stats)
    if error is not None:
        outcome["error"] = error.message
    return outcome
