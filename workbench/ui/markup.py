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
from workbench.ui.texts import ENGLISH, Texts
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


def user_message(turn: Turn, say: Texts = ENGLISH) -> str:
    """A visitor's message."""
    edit = _action("edit", say("Edit"), say("Edit this message"))
    copy = _action("copy", say("Copy"), say("Copy this message"))
    who = f'<div class="wb-who">{html.escape(say("You"))}{edit}{copy}</div>'
    return f'<div class="wb-msg">{who}<div class="wb-body">{plain(turn.text)}</div></div>'


def _action(name: str, label: str, title: str) -> str:
    """What can be done with a message. The page's script tells messages apart by their place."""
    return f'<button type="button" class="wb-act wb-act-{name}" title="{title}">{label}</button>'


def assistant_message(
    turn: Turn, model_name: str, phases: Sequence[Phase] = (), *, can_choose: bool = False, say: Texts = ENGLISH
) -> str:
    """An answer, or several side by side, each with its figures.

    Args:
        turn: the answers.
        model_name: who speaks.
        phases: one for each answer while they are under way.
        can_choose: whether another one of several answers can still be chosen.
        say: the language of what is ours.
    """
    answers = turn.all_answers
    stands = list(phases) or [Phase(PhaseKind.DONE)] * len(answers)
    if len(answers) == 1:
        as_tokens = 0 in turn.shown_as_tokens
        actions = "" if phases else _tokens_switch(answers[0], say, is_on=as_tokens)
        if turn.text and not phases:
            actions += _action("copy", say("Copy"), say("Copy this message"))
        who = f'<div class="wb-who">{html.escape(_speaker(turn, model_name, say))}{actions}</div>'
        return f'<div class="wb-msg">{who}{_answer(answers[0], stands[0], say, as_tokens=as_tokens)}</div>'
    who = _who_shares(turn, model_name, say)
    if not any(answer.text or stand.kind is PhaseKind.DONE for answer, stand in zip(answers, stands, strict=True)):
        return f'<div class="wb-msg">{who}{_waiting(stands[0], say)}</div>'
    columns = "".join(
        _column(turn, index, answer, stand, say, is_under_way=bool(phases), can_choose=can_choose)
        for index, (answer, stand) in enumerate(zip(answers, stands, strict=True))
    )
    return f'<div class="wb-msg">{who}<div class="wb-answers wb-answers-{len(answers)}">{columns}</div></div>'


def _tokens_switch(answer: Answer, say: Texts, *, is_on: bool) -> str:
    """The switch that shows an answer as tokens; nothing where they are not known."""
    if answer.trace is None or not answer.trace.tokens:
        return ""
    if is_on:
        return _action("tokens", say("Text"), say("Show this answer as text again"))
    return _action("tokens", say("Tokens"), say("Show this answer as its tokens"))


def _speaker(turn: Turn, model_name: str, say: Texts) -> str:
    score = score_words(turn.stats, say)
    return say("{model} · beam search, {score}", model=model_name, score=score) if score else model_name


def _who_shares(turn: Turn, model_name: str, say: Texts) -> str:
    """Who speaks, how many answers there are, and the figures of the prompt that they share."""
    stats = turn.answers[0].stats
    kind = "{model} · {count} answers" if stats.beam_score is None else "{model} · {count} beams"
    name = say(kind, model=model_name, count=len(turn.answers))
    prompt = "" if stats.num_prompt_tokens is None else f'<span class="wb-prompt">{_prompt(stats, say)}</span>'
    return f'<div class="wb-who">{html.escape(name)}{prompt}</div>'


def _column(
    turn: Turn, index: int, answer: Answer, phase: Phase, say: Texts, *, is_under_way: bool, can_choose: bool
) -> str:
    """One of several answers: its name, whether the conversation goes on with it, its text and its figures."""
    is_chosen = index == turn.chosen and not is_under_way
    mark = f'<span class="wb-tag wb-chosen">{say("chosen")}</span>' if is_chosen else ""
    choose = (
        _action("choose", say("Choose"), say("Go on with this answer"))
        if can_choose and answer.text and not is_chosen
        else ""
    )
    copy = _action("copy", say("Copy"), say("Copy this answer")) if answer.text and not is_under_way else ""
    as_tokens = index in turn.shown_as_tokens
    tokens = "" if is_under_way else _tokens_switch(answer, say, is_on=as_tokens)
    label = f'<div class="wb-who">{html.escape(turn.label(index, say))}{mark}{choose}{tokens}{copy}</div>'
    css = "wb-answer wb-on" if is_chosen else "wb-answer"
    return f'<div class="{css}">{label}{_answer(answer, phase, say, is_alone=False, as_tokens=as_tokens)}</div>'


def _answer(answer: Answer, phase: Phase, say: Texts, *, is_alone: bool = True, as_tokens: bool = False) -> str:
    """The text of an answer, or what it waits for; then its error, its figures, and what holds it."""
    footer = answer_footer(answer.stats, phase, has_prompt=is_alone, trace=answer.trace, say=say)
    is_streaming = phase.kind is not PhaseKind.DONE
    if not answer.text and is_streaming:
        return _waiting(phase, say)
    error = error_note(answer.error) if answer.error else ""
    if as_tokens and answer.trace is not None:
        return f"{_tokens(answer.trace, say)}{error}{footer}"
    if not answer.text:
        return error or f'<div class="wb-body wb-waiting">{say("(no text)")}</div>{footer}'
    body = f'<div class="wb-body{" wb-streaming" if is_streaming else ""}">{markdown(answer.text)}</div>'
    return f"{body}{error}{footer}{_why(phase)}"


def _tokens(trace: AnswerTrace, say: Texts) -> str:
    label = say("{count} tokens; the arrow keys go from one to the next.", count=len(trace.tokens))
    return (
        '<div class="wb-body wb-tokens" role="group" tabindex="0">'
        f'<span class="wb-sr">{label}</span>{token_spans(trace)}</div>'
    )


def _waiting(phase: Phase, say: Texts) -> str:
    """What is shown in the place of a text that has not come yet."""
    return f'<div class="wb-body wb-waiting">{html.escape(_waiting_words(phase, say))}</div>{_why(phase)}'


def _why(phase: Phase) -> str:
    """The scheduler's reasons, one to a line."""
    return "".join(f'<div class="wb-why">{html.escape(sentence)}</div>' for sentence in phase.why)


def _waiting_words(phase: Phase, say: Texts) -> str:
    if phase.kind is PhaseKind.LOADING:
        return say("The model is loading. Your message is sent as soon as it is ready.")
    return phase.words_in(say)


def answer_footer(
    stats: AnswerStats,
    phase: Phase,
    *,
    has_prompt: bool = True,
    trace: AnswerTrace | None = None,
    say: Texts = ENGLISH,
) -> str:
    """The figures under an answer: `TTFT · ITL p50 / p95 · tok/s · prompt · accepted / drafted · finish reason`.

    With a trace they are a button, which the page's script takes to the request's row in the timeline.
    """
    end = say("streaming") if phase.kind is PhaseKind.DECODE else phase.words_in(say)
    parts = figures(stats, end, lambda value: f"<b>{value}</b>", has_prompt=has_prompt, say=say)
    words = "".join(f"<span>{part}</span>" for part in parts)
    if trace is None:
        return f'<div class="wb-foot">{words}</div>'
    title = say("Show in the timeline")
    target = f'name="{html.escape(trace.request_id)}" value="{trace.last_step}"'
    return f'<button type="button" class="wb-foot" title="{title}" {target}>{words}</button>'


def figures(
    stats: AnswerStats,
    end: str,
    mark: Callable[[str], str] = str,
    *,
    has_prompt: bool = True,
    say: Texts = ENGLISH,
) -> list[str]:
    """Return the figures of an answer in words, each value through `mark`; `end` stands for a missing finish reason."""
    parts = _latency(stats, say, mark)
    if has_prompt:
        parts.append(_prompt(stats, say, mark))
    if stats.num_output_tokens:
        parts.append(say("{count} out", count=mark(numbers.count(stats.num_output_tokens))))
    if stats.num_draft_tokens:
        parts.append(say("accepted {share}", share=_accepted(stats, mark)))
    if stats.num_preemptions:
        parts.append(say("preempted {count}×", count=mark(str(stats.num_preemptions))))
    if stats.num_swaps:
        parts.append(say("swapped {count}×", count=mark(str(stats.num_swaps))))
    return [*parts, end if stats.finish_reason is None else say(stats.finish_reason.value)]


def _accepted(stats: AnswerStats, mark: Callable[[str], str]) -> str:
    """Accepted of drafted tokens: `84 / 132`."""
    return f"{mark(numbers.count(stats.num_accepted_tokens))} / {numbers.count(stats.num_draft_tokens)}"


def _latency(stats: AnswerStats, say: Texts, mark: Callable[[str], str]) -> list[str]:
    """How fast the tokens came; of beams, whose tokens all come at once, how long they took in all."""
    if stats.beam_score is not None:
        return [say("{time} in all", time=mark(numbers.milliseconds(stats.e2e_s)))]
    itl_p50, itl_p95 = numbers.milliseconds(stats.itl_p50_s), numbers.milliseconds(stats.itl_p95_s)
    if itl_p50.endswith(" ms") and itl_p95.endswith(" ms"):
        itl_p50 = itl_p50.removesuffix(" ms")
    return [
        f"TTFT {mark(numbers.milliseconds(stats.ttft_s))}",
        f"ITL p50 {mark(itl_p50)} / p95 {mark(itl_p95)}",
        say("{rate} tok/s", rate=mark(numbers.rate(stats.tokens_per_s))),
    ]


def _prompt(stats: AnswerStats, say: Texts, mark: Callable[[str], str] = str) -> str:
    """How much of the prompt the cache held, and why no more: `prompt 327 (288 cached; differs at token 290)`."""
    found = ""
    if stats.num_cached_tokens:
        found = say("{count} cached", count=mark(numbers.count(stats.num_cached_tokens)))
    miss = explain_miss(stats.cache_miss, stats.differs_at, say)
    if miss and not found and stats.cache_miss is not CacheMiss.DISABLED and stats.differs_at != 0:
        found = say("none cached")
    words = say("; ").join(part for part in (found, miss) if part)
    count = mark(numbers.count(stats.num_prompt_tokens))
    return say("prompt {count} ({words})", count=count, words=words) if words else say("prompt {count}", count=count)


def error_note(error: ChatError) -> str:
    """One clear message in place of, or below, an answer."""
    return f'<div class="wb-note-error" role="alert">{plain(error.message)}</div>'
