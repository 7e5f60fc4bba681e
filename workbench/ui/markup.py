"""Text into HTML for the chat. What a model or a visitor wrote is untrusted; what we add is ours.

Markdown is rendered here, by a parser that escapes every tag and loads no image, so that nothing a
model says can become markup, fetch from another host, or imitate the figures under an answer.
The result is one HTML block without line breaks: the browser's own Markdown step passes it through.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Final

from markdown_it import MarkdownIt

from workbench.ui import numbers
from workbench.ui.chat_session import Phase, PhaseKind
from workbench.ui.turns import AnswerStats, ChatError, Turn


def _build_renderer() -> MarkdownIt:
    renderer = MarkdownIt("commonmark", {"html": False, "breaks": True, "linkify": False})
    return renderer.enable(["table", "strikethrough"]).disable(["image", "html_block", "html_inline"])


_RENDERER: Final = _build_renderer()
"""Immutable once built."""


def _one_line(markup: str) -> str:
    """Replace line breaks by their entity: a blank line would end the HTML block."""
    return markup.replace("\r", "").replace("\n", "&#10;")


def markdown(text: str) -> str:
    """Render untrusted Markdown as HTML on one line, with all raw HTML escaped and no images."""
    rendered = _RENDERER.render(text)
    return _one_line(rendered.replace("<a href=", '<a rel="noopener noreferrer" target="_blank" href='))


def plain(text: str) -> str:
    """Render untrusted text as it stands, line breaks kept."""
    return _one_line(html.escape(text.strip())).replace("&#10;", "<br>")


def user_message(turn: Turn) -> str:
    """A visitor's message."""
    return f'<div class="wb-msg">{_who("You", "Edit", "Copy")}<div class="wb-body">{plain(turn.text)}</div></div>'


def _who(name: str, *actions: str) -> str:
    """Who speaks, and what can be done with the message. The page's script tells messages apart by their place."""
    buttons = "".join(
        f'<button type="button" class="wb-act wb-act-{action.lower()}" title="{action} this message">{action}</button>'
        for action in actions
    )
    return f'<div class="wb-who">{html.escape(name)}{buttons}</div>'


def assistant_message(turn: Turn, model_name: str, phase: Phase | None = None) -> str:
    """An answer with its figures; `phase` while it is under way."""
    is_streaming = phase is not None
    if turn.text:
        body = f'<div class="wb-body{" wb-streaming" if is_streaming else ""}">{markdown(turn.text)}</div>'
    elif phase is not None:
        body = f'<div class="wb-body wb-waiting">{html.escape(_waiting_words(phase))}</div>'
    else:
        body = "" if turn.error else '<div class="wb-body wb-waiting">(no text)</div>'
    footer = answer_footer(turn.stats, phase) if turn.stats and (turn.text or not is_streaming) else ""
    error = error_note(turn.error) if turn.error else ""
    actions = ["Copy"] if turn.text and not is_streaming else []
    return (
        f'<div class="wb-msg">{_who(model_name, *actions)}{body}{error}'
        f"{'' if turn.error and not turn.text else footer}</div>"
    )


def _waiting_words(phase: Phase) -> str:
    match phase.kind:
        case PhaseKind.LOADING:
            return "The model is loading. Your message is sent as soon as it is ready."
        case PhaseKind.QUEUED if phase.position is None:
            return "queued"
        case _:
            return phase.words


def answer_footer(stats: AnswerStats, phase: Phase | None) -> str:
    """The figures under an answer: `TTFT · ITL p50 / p95 · tok/s · prompt · finish reason`."""
    end = phase.words if phase is not None and phase.kind is not PhaseKind.DECODE else "streaming"
    parts = figures(stats, end, lambda value: f"<b>{value}</b>")
    return '<div class="wb-foot">' + "".join(f"<span>{part}</span>" for part in parts) + "</div>"


def figures(stats: AnswerStats, end: str, mark: Callable[[str], str] = str) -> list[str]:
    """Return the figures of an answer in words, each value through `mark`; `end` stands for a missing finish reason."""
    itl_p50, itl_p95 = numbers.milliseconds(stats.itl_p50_s), numbers.milliseconds(stats.itl_p95_s)
    if itl_p50.endswith(" ms") and itl_p95.endswith(" ms"):
        itl_p50 = itl_p50.removesuffix(" ms")
    parts = [
        f"TTFT {mark(numbers.milliseconds(stats.ttft_s))}",
        f"ITL p50 {mark(itl_p50)} / p95 {mark(itl_p95)}",
        f"{mark(numbers.rate(stats.tokens_per_s))} tok/s",
        f"prompt {mark(numbers.count(stats.num_prompt_tokens))}{_cached(stats, mark)}",
    ]
    if stats.num_output_tokens:
        parts.append(f"{mark(numbers.count(stats.num_output_tokens))} out")
    if stats.num_preemptions:
        parts.append(f"preempted {mark(str(stats.num_preemptions))}×")
    return [*parts, end if stats.finish_reason is None else stats.finish_reason.value]


def _cached(stats: AnswerStats, mark: Callable[[str], str]) -> str:
    return f" ({mark(numbers.count(stats.num_cached_tokens))} cached)" if stats.num_cached_tokens else ""


def error_note(error: ChatError) -> str:
    """One clear message in place of, or below, an answer."""
    return f'<div class="wb-note-error" role="alert">{plain(error.message)}</div>'
