"""Text into HTML for the chat. What a model or a visitor wrote is untrusted; what we add is ours.

Markdown is rendered here, by a parser that escapes every tag and loads no image, so that nothing a
model says can become markup, fetch from another host, or imitate the figures under an answer.
The result is one HTML block without line breaks: the browser's own Markdown step passes it through.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Final

from markdown_it import MarkdownIt

from workbench.telemetry.records import CacheMiss
from workbench.ui import numbers
from workbench.ui.answer_trace import AnswerTrace
from workbench.ui.explain import explain_miss
from workbench.ui.phases import Phase, PhaseKind
from workbench.ui.token_markup import token_spans
from workbench.ui.turns import Answer, AnswerStats, ChatError, Turn, score_words


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
    buttons = "".join(_action(action, f"{action} this message") for action in actions)
    return f'<div class="wb-who">{html.escape(name)}{buttons}</div>'


def _action(name: str, title: str) -> str:
    return f'<button type="button" class="wb-act wb-act-{name.lower()}" title="{title}">{name}</button>'


def assistant_message(turn: Turn, model_name: str, phases: Sequence[Phase] = (), *, can_choose: bool = False) -> str:
    """An answer, or several side by side, each with its figures.

    Args:
        turn: the answers.
        model_name: who speaks.
        phases: one for each answer while they are under way.
        can_choose: whether another one of several answers can still be chosen.
    """
    answers = turn.all_answers
    stands = list(phases) or [Phase(PhaseKind.DONE)] * len(answers)
    if len(answers) == 1:
        as_tokens = 0 in turn.shown_as_tokens
        actions = "" if phases else _tokens_switch(answers[0], is_on=as_tokens)
        if turn.text and not phases:
            actions += _action("Copy", "Copy this message")
        who = f'<div class="wb-who">{html.escape(_speaker(turn, model_name))}{actions}</div>'
        return f'<div class="wb-msg">{who}{_answer(answers[0], stands[0], as_tokens=as_tokens)}</div>'
    who = _who_shares(turn, model_name)
    if not any(answer.text or stand.kind is PhaseKind.DONE for answer, stand in zip(answers, stands, strict=True)):
        return f'<div class="wb-msg">{who}{_waiting(stands[0])}</div>'
    columns = "".join(
        _column(turn, index, answer, stand, is_under_way=bool(phases), can_choose=can_choose)
        for index, (answer, stand) in enumerate(zip(answers, stands, strict=True))
    )
    return f'<div class="wb-msg">{who}<div class="wb-answers wb-answers-{len(answers)}">{columns}</div></div>'


def _tokens_switch(answer: Answer, *, is_on: bool) -> str:
    """The switch that shows an answer as tokens; nothing where they are not known."""
    if answer.trace is None or not answer.trace.tokens:
        return ""
    label, title = ("Text", "Show this answer as text again") if is_on else ("Tokens", "Show this answer as its tokens")
    return f'<button type="button" class="wb-act wb-act-tokens" title="{title}">{label}</button>'


def _speaker(turn: Turn, model_name: str) -> str:
    score = score_words(turn.stats)
    return f"{model_name} · beam search, {score}" if score else model_name


def _who_shares(turn: Turn, model_name: str) -> str:
    """Who speaks, how many answers there are, and the figures of the prompt that they share."""
    stats = turn.answers[0].stats
    name = f"{model_name} · {len(turn.answers)} {'answers' if stats.beam_score is None else 'beams'}"
    prompt = "" if stats.num_prompt_tokens is None else f'<span class="wb-prompt">{_prompt(stats)}</span>'
    return f'<div class="wb-who">{html.escape(name)}{prompt}</div>'


def _column(turn: Turn, index: int, answer: Answer, phase: Phase, *, is_under_way: bool, can_choose: bool) -> str:
    """One of several answers: its name, whether the conversation goes on with it, its text and its figures."""
    is_chosen = index == turn.chosen and not is_under_way
    mark = '<span class="wb-tag wb-chosen">chosen</span>' if is_chosen else ""
    choose = _action("Choose", "Go on with this answer") if can_choose and answer.text and not is_chosen else ""
    copy = _action("Copy", "Copy this answer") if answer.text and not is_under_way else ""
    as_tokens = index in turn.shown_as_tokens
    tokens = "" if is_under_way else _tokens_switch(answer, is_on=as_tokens)
    label = f'<div class="wb-who">{html.escape(turn.label(index))}{mark}{choose}{tokens}{copy}</div>'
    css = "wb-answer wb-on" if is_chosen else "wb-answer"
    return f'<div class="{css}">{label}{_answer(answer, phase, is_alone=False, as_tokens=as_tokens)}</div>'


def _answer(answer: Answer, phase: Phase, *, is_alone: bool = True, as_tokens: bool = False) -> str:
    """The text of an answer, or what it waits for; then its error, its figures, and what holds it."""
    footer = answer_footer(answer.stats, phase, has_prompt=is_alone, trace=answer.trace)
    is_streaming = phase.kind is not PhaseKind.DONE
    if not answer.text and is_streaming:
        return _waiting(phase)
    error = error_note(answer.error) if answer.error else ""
    if as_tokens and answer.trace is not None:
        return f"{_tokens(answer.trace)}{error}{footer}"
    if not answer.text:
        return error or f'<div class="wb-body wb-waiting">(no text)</div>{footer}'
    body = f'<div class="wb-body{" wb-streaming" if is_streaming else ""}">{markdown(answer.text)}</div>'
    return f"{body}{error}{footer}{_why(phase)}"


def _tokens(trace: AnswerTrace) -> str:
    label = f"{len(trace.tokens)} tokens; the arrow keys go from one to the next."
    return (
        '<div class="wb-body wb-tokens" role="group" tabindex="0">'
        f'<span class="wb-sr">{label}</span>{token_spans(trace)}</div>'
    )


def _waiting(phase: Phase) -> str:
    """What is shown in the place of a text that has not come yet."""
    return f'<div class="wb-body wb-waiting">{html.escape(_waiting_words(phase))}</div>{_why(phase)}'


def _why(phase: Phase) -> str:
    """The scheduler's reasons, one to a line."""
    return "".join(f'<div class="wb-why">{html.escape(sentence)}</div>' for sentence in phase.why)


def _waiting_words(phase: Phase) -> str:
    if phase.kind is PhaseKind.LOADING:
        return "The model is loading. Your message is sent as soon as it is ready."
    return phase.words


def answer_footer(
    stats: AnswerStats, phase: Phase, *, has_prompt: bool = True, trace: AnswerTrace | None = None
) -> str:
    """The figures under an answer: `TTFT · ITL p50 / p95 · tok/s · prompt · finish reason`.

    With a trace they are a button, which the page's script takes to the request's row in the timeline.
    """
    end = "streaming" if phase.kind is PhaseKind.DECODE else phase.words
    parts = figures(stats, end, lambda value: f"<b>{value}</b>", has_prompt=has_prompt)
    words = "".join(f"<span>{part}</span>" for part in parts)
    if trace is None:
        return f'<div class="wb-foot">{words}</div>'
    target = f'name="{html.escape(trace.request_id)}" value="{trace.last_step}"'
    return f'<button type="button" class="wb-foot" title="Show in the timeline" {target}>{words}</button>'


def figures(stats: AnswerStats, end: str, mark: Callable[[str], str] = str, *, has_prompt: bool = True) -> list[str]:
    """Return the figures of an answer in words, each value through `mark`; `end` stands for a missing finish reason."""
    parts = _latency(stats, mark)
    if has_prompt:
        parts.append(_prompt(stats, mark))
    if stats.num_output_tokens:
        parts.append(f"{mark(numbers.count(stats.num_output_tokens))} out")
    if stats.num_preemptions:
        parts.append(f"preempted {mark(str(stats.num_preemptions))}×")
    if stats.num_swaps:
        parts.append(f"swapped {mark(str(stats.num_swaps))}×")
    return [*parts, end if stats.finish_reason is None else stats.finish_reason.value]


def _latency(stats: AnswerStats, mark: Callable[[str], str]) -> list[str]:
    """How fast the tokens came; of beams, whose tokens all come at once, how long they took in all."""
    if stats.beam_score is not None:
        return [f"{mark(numbers.milliseconds(stats.e2e_s))} in all"]
    itl_p50, itl_p95 = numbers.milliseconds(stats.itl_p50_s), numbers.milliseconds(stats.itl_p95_s)
    if itl_p50.endswith(" ms") and itl_p95.endswith(" ms"):
        itl_p50 = itl_p50.removesuffix(" ms")
    return [
        f"TTFT {mark(numbers.milliseconds(stats.ttft_s))}",
        f"ITL p50 {mark(itl_p50)} / p95 {mark(itl_p95)}",
        f"{mark(numbers.rate(stats.tokens_per_s))} tok/s",
    ]


def _prompt(stats: AnswerStats, mark: Callable[[str], str] = str) -> str:
    """How much of the prompt the cache held, and why no more: `prompt 327 (288 cached; differs at token 290)`."""
    found = f"{mark(numbers.count(stats.num_cached_tokens))} cached" if stats.num_cached_tokens else ""
    miss = explain_miss(stats.cache_miss, stats.differs_at)
    if miss and not found and stats.cache_miss is not CacheMiss.DISABLED and stats.differs_at != 0:
        found = "none cached"
    words = "; ".join(part for part in (found, miss) if part)
    return f"prompt {mark(numbers.count(stats.num_prompt_tokens))}{f' ({words})' if words else ''}"


def error_note(error: ChatError) -> str:
    """One clear message in place of, or below, an answer."""
    return f'<div class="wb-note-error" role="alert">{plain(error.message)}</div>'
