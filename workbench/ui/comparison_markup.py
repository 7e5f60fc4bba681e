"""A comparison as HTML: two columns of text, what came of it, and where the figures are from."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

from workbench.telemetry.records import FinishReason
from workbench.ui import numbers
from workbench.ui.answer_trace import AnswerToken, TokenSource
from workbench.ui.comparison import Comparison, Side
from workbench.ui.draft_steps import DraftTotals
from workbench.ui.markup import error_note, figures
from workbench.ui.phases import PhaseKind
from workbench.ui.texts import ENGLISH, Texts

SOURCE_WORDS: Final = (
    (TokenSource.ACCEPTED, "draft accepted"),
    (TokenSource.RECOVERED, "recovered"),
    (TokenSource.BONUS, "bonus"),
    (TokenSource.TARGET, "target"),
)
"""What a colour means, in the order of the legend."""
PROOF_ID: Final = "wb-proof"
"""Where the page says what proves that nothing is lost."""


def plain_column(comparison: Comparison | None, say: Texts = ENGLISH) -> str:
    """The answer without drafting."""
    title = say("Without speculation")
    if comparison is None:
        words = say("The same prompt, one token for each step.")
        return _column(title, "", _empty(words), "")
    side = comparison.plain
    steps = say("{count} steps, one token each", count=len(side.steps)) if side.steps else ""
    return _column(title, f'<span class="wb-sub">{steps}</span>', _text(side, say), _footer(side, comparison, say))


def drafted_column(comparison: Comparison | None, say: Texts = ENGLISH) -> str:
    """The answer with drafting, its tokens coloured by who proposed them."""
    title = say("With speculation")
    if comparison is None:
        words = say("Tokens are drafted ahead and verified together; colours will tell who proposed each of them.")
        return _column(title, _legend(say), _empty(words), "")
    side = comparison.drafted
    steps = say("{count} steps", count=len(side.steps)) if side.steps else ""
    differs_at = comparison.differs_at if comparison.is_whole and is_greedy(comparison) else None
    head = f'<span class="wb-sub">{steps}</span>{badge(comparison, say)}{_legend(say)}'
    text = _text(side, say, differs_at=differs_at)
    return _column(title, head, text, _footer(side, comparison, say))


def is_greedy(comparison: Comparison) -> bool:
    """Whether token identity is promised: at temperature 0 only."""
    return comparison.wanted.params.temperature == 0


def badge(comparison: Comparison, say: Texts = ENGLISH) -> str:
    """What the comparison of the tokens says, once both answers have come to their end."""
    if not comparison.is_final:
        return ""
    if not comparison.is_whole:
        return f'<span class="wb-badge wb-badge-partial">{say("not compared: incomplete")}</span>'
    if not is_greedy(comparison):
        title = say("What proves it")
        return f'<a class="wb-badge" href="#{PROOF_ID}" title="{title}">{say("same distribution")}</a>'
    if comparison.differs_at is None:
        return f'<span class="wb-badge wb-badge-same">{say("identical ✓")}</span>'
    words = say("differs at token {place}", place=comparison.differs_at + 1)
    return f'<span class="wb-badge wb-badge-differs">{words}</span>'


def verdict(comparison: Comparison | None, machine: str, say: Texts = ENGLISH) -> str:
    """How much faster it was, and what was run where; a screen reader is told."""
    if comparison is None:
        return f'<p class="wb-note" role="status">{say("Speeds are compared when both run one after the other.")}</p>'
    if not comparison.is_final:
        words = say("Both are running.") if comparison.is_race else say("One runs after the other.")
        return f'<p class="wb-note">{words}</p>'
    big = ""
    if comparison.speedup is not None:
        rates = say(
            "{drafted} against {plain} tok/s",
            drafted=numbers.rate(comparison.drafted.stats.tokens_per_s),
            plain=numbers.rate(comparison.plain.stats.tokens_per_s),
        )
        speedup = say("{factor}× as fast", factor=f"{comparison.speedup:.2f}")
        big = f'<b class="wb-speedup">{speedup}</b> <span class="wb-mono">{rates}</span>'
    words = html.escape(_circumstances(comparison, machine, say))
    return f'<div class="wb-verdict" role="status">{big}<p class="wb-note">{words}</p></div>'


def _circumstances(comparison: Comparison, machine: str, say: Texts) -> str:
    params = comparison.wanted.params
    how = say("greedy") if is_greedy(comparison) else say("temperature {value}", value=f"{params.temperature:g}")
    others = max(comparison.plain.num_others, comparison.drafted.num_others) - comparison.is_race
    company = say("no other requests") if others <= 0 else say("up to {count} other requests in a step", count=others)
    told = {"machine": machine, "how": how, "company": company}
    if comparison.is_race:
        return say(
            "Both ran at once on {machine}, {how}, {company}: they shared each step, so speeds are not compared.",
            **told,
        )
    return say("One after the other on {machine}, {how}, {company}. Both found the prompt in the prefix cache.", **told)


def _column(title: str, head: str, text: str, footer: str) -> str:
    return (
        f'<section class="wb wb-column" aria-label="{title}"><div class="wb-column-head"><h2>{title}</h2>{head}</div>'
        f"{text}{footer}</section>"
    )


def _empty(words: str) -> str:
    return f'<p class="wb-empty">{words}</p>'


def _text(side: Side, say: Texts, differs_at: int | None = None) -> str:
    if side.error is not None and not side.tokens:
        return error_note(side.error)
    if not side.tokens:
        waits = say("(no text)") if side.is_final else _waiting(side, say)
        return f'<div class="wb-column-text wb-sub">{html.escape(waits)}</div>'
    error = error_note(side.error) if side.error is not None else ""
    return f'<div class="wb-column-text" tabindex="0">{_spans(side.tokens, differs_at)}</div>{error}'


def _waiting(side: Side, say: Texts) -> str:
    if side.phase is None:
        return say("waits for its turn")
    if side.phase.kind is PhaseKind.LOADING:
        return say("The model is loading. Your message is sent as soon as it is ready.")
    return side.phase.words_in(say)


def _spans(tokens: Sequence[AnswerToken], differs_at: int | None) -> str:
    """Runs of tokens from one source; from `differs_at` on they are underlined, too."""
    parts: list[str] = []
    for place, token in enumerate(tokens):
        differs = " wb-differs" if differs_at is not None and place >= differs_at else ""
        parts.append(f'<span class="wb-from-{token.source.value}{differs}">{html.escape(token.text)}</span>')
    return "".join(parts)


def _legend(say: Texts) -> str:
    marks = "".join(
        f'<span><i class="wb-sw wb-from-{source.value}" aria-hidden="true"></i>{say(words)}</span>'
        for source, words in SOURCE_WORDS
    )
    return f'<div class="wb-key">{marks}</div>'


def _footer(side: Side, comparison: Comparison, say: Texts) -> str:
    if not side.tokens:
        return ""
    end = say("streaming") if side.stats.finish_reason is None else say(side.stats.finish_reason.value)
    parts = figures(side.stats, end, lambda value: f"<b>{value}</b>", has_prompt=False, say=say)
    if side.stats.finish_reason is FinishReason.ABORT:
        parts[-1] = say("stopped: partial")
    if comparison.is_race:
        parts[2] += f' <i class="wb-tag">{say("shared")}</i>'
    return f'<div class="wb-foot">{"".join(f"<span>{part}</span>" for part in parts)}</div>'


# ------------------------------------------------------------------------------ figures in words


def chart_head(title: str, about: str) -> str:
    """The name of a chart and what it shows, on what."""
    return f'<div class="wb wb-chart-head"><h2>{title}</h2><p class="wb-note">{html.escape(about)}</p></div>'


def run_facts(comparison: Comparison | None, say: Texts = ENGLISH) -> str:
    """Drafting in the last comparison: what it brought and what it cost."""
    head = f"<h2>{say('This run')}</h2>"
    if comparison is None or not comparison.drafted.steps:
        words = say("Drafted, accepted and wasted tokens, and the time in drafting and verifying, of the last run.")
        return f'<div class="wb">{head}{_empty(words)}</div>'
    side = comparison.drafted
    counts, steps = side.statistics, side.steps
    verifying = [step.execute_s for step in steps if step.num_draft_tokens]
    plain = [step.execute_s for step in steps[1:] if not step.num_draft_tokens]
    rows = [
        (say("Drafts verified"), numbers.count(counts.num_drafts)),
        (say("Drafted tokens"), numbers.count(counts.num_draft_tokens)),
        (say("Accepted"), _share(counts.num_accepted_tokens, counts.acceptance)),
        (say("Wasted"), numbers.count(counts.num_wasted_tokens)),
        (say("Tokens per verified draft"), _fixed(counts.mean_acceptance_length)),
        (say("Time drafting"), numbers.milliseconds(sum(step.draft_s for step in steps))),
        (say("Time in steps that verify"), _times(verifying)),
        (say("Time in plain steps"), _times(plain)),
    ]
    return f'<div class="wb">{head}{_rows(rows)}</div>'


def total_facts(totals: DraftTotals, say: Texts = ENGLISH) -> str:
    """Drafting of all requests in the recorded steps."""
    head = f"<h2>{say('All requests')}</h2>"
    counts = totals.overall
    if not counts.num_drafts:
        words = say("No draft is recorded yet. Choose a method in the sidebar and send a message, or run a comparison.")
        return f'<div class="wb">{head}{_empty(words)}</div>'
    span = say("recorded steps {first} to {last}", first=totals.first_step, last=totals.last_step)
    rows = [
        (say("Drafts verified"), numbers.count(counts.num_drafts)),
        (say("Accepted"), _share(counts.num_accepted_tokens, counts.acceptance)),
        (say("Wasted"), numbers.count(counts.num_wasted_tokens)),
        (say("Tokens per verified draft"), _fixed(counts.mean_acceptance_length)),
        (say("Time drafting"), numbers.milliseconds(totals.draft_s)),
        (say("Time in steps that verify"), numbers.milliseconds(totals.verify_s)),
    ]
    return f'<div class="wb">{head}<p class="wb-note">{span}</p>{_rows(rows)}</div>'


def total_headers(say: Texts = ENGLISH) -> list[str]:
    """What the columns of `total_rows` hold."""
    return [
        say("Request"),
        say("Drafts verified"),
        say("Drafted tokens"),
        say("Accepted"),
        say("Wasted"),
        say("Draft acceptance"),
        say("Tokens per verified draft"),
    ]


def total_rows(totals: DraftTotals) -> list[list[str]]:
    """One row for each request that was drafted for."""
    return [
        [
            name,
            numbers.count(counts.num_drafts),
            numbers.count(counts.num_draft_tokens),
            numbers.count(counts.num_accepted_tokens),
            numbers.count(counts.num_wasted_tokens),
            _fixed(counts.acceptance),
            _fixed(counts.mean_acceptance_length),
        ]
        for name, counts in totals.by_request
    ]


def _rows(rows: Sequence[tuple[str, str]]) -> str:
    return (
        '<dl class="wb-kv">'
        + "".join(f"<div><dt>{label}</dt><dd>{html.escape(value)}</dd></div>" for label, value in rows)
        + "</dl>"
    )


def _share(part: int, share: float | None) -> str:
    return f"{numbers.count(part)} ({_fixed(share)})"


def _times(times_s: Sequence[float]) -> str:
    """How many, and their mean: `33 × 12.5 ms`."""
    if not times_s:
        return numbers.MISSING
    return f"{numbers.count(len(times_s))} × {numbers.milliseconds(sum(times_s) / len(times_s))}"


def _fixed(value: float | None) -> str:
    return numbers.MISSING if value is None else f"{value:.2f}"
