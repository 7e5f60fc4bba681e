"""What happens on the Speculation tab: a comparison is run or stopped, and the charts are drawn from it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import gradio as gr

from workbench.engine.service import EngineService
from workbench.errors import WorkbenchError
from workbench.ui import comparison_markup as markup
from workbench.ui.active_turns import ActiveTurns
from workbench.ui.chat_handlers import session_of
from workbench.ui.comparison import Comparison, Side, compare, step_costs
from workbench.ui.comparison_widgets import ComparisonWidgets
from workbench.ui.components.machine import describe_machine
from workbench.ui.draft_steps import totals_of
from workbench.ui.figures import speculation as figures
from workbench.ui.figures.speculation import MeasuredSpeedup
from workbench.ui.listeners import Listeners
from workbench.ui.localized import texts_for
from workbench.ui.notes import note
from workbench.ui.sampling_form import FIELDS, priority_of, sampling_params, speculation_settings
from workbench.ui.speculation_controls import METHOD_WORDS
from workbench.ui.texts import Texts
from workbench.ui.turns import AnswerSettings

Changes = AsyncGenerator[dict[Any, Any], None]

SESSIONS_KEPT: Final = 200
SPEEDUPS_KEPT: Final = 60


@dataclass
class ComparisonHandlers:
    """The handlers of one page. The visitor's form comes after the tab's own controls."""

    service: EngineService
    widgets: ComparisonWidgets
    listeners: Listeners | None = None
    turns: ActiveTurns = field(init=False)
    machine: str = field(default_factory=describe_machine)
    _speedups: OrderedDict[str, list[tuple[int, MeasuredSpeedup]]] = field(default_factory=OrderedDict)
    """Browser tab → (engine's epoch, what was measured)."""

    def __post_init__(self) -> None:
        self.turns = ActiveTurns(self.service, self.listeners)

    async def run(self, request: gr.Request, *asked: Any) -> Changes:
        """Run one after the other, and compare speeds."""
        async with aclosing(self._compare(request, asked, is_race=False)) as changes:
            async for change in changes:
                yield change

    async def race(self, request: gr.Request, *asked: Any) -> Changes:
        """Run both at once, to watch them."""
        async with aclosing(self._compare(request, asked, is_race=True)) as changes:
            async for change in changes:
                yield change

    async def stop(self, request: gr.Request) -> None:
        """End what is under way; the handler that runs it then shows what there is."""
        self.turns.stop(session_of(request))

    async def open(self, request: gr.Request) -> dict[Any, Any]:
        """Say what will be where, in the visitor's language."""
        say, widgets = texts_for(request), self.widgets
        heads = ChartHeads(say)
        return {
            widgets.plain: markup.plain_column(None, say),
            widgets.drafted: markup.drafted_column(None, say),
            widgets.verdict: markup.verdict(None, self.machine, say),
            widgets.run_facts: markup.run_facts(None, say),
            widgets.by_position.head: heads.by_position(
                say("A run fills this: of the drafts that got to a position, the share whose token there stood.")
            ),
            widgets.lengths.head: heads.lengths(
                say("A run fills this: how often so many tokens of a draft were accepted.")
            ),
            widgets.speedup.head: heads.speedup(
                say("Each run in turn adds a dot, and draws the line that the formula predicts from its costs.")
            ),
            widgets.over_time.head: heads.over_time(
                say("A run fills this: how many tokens were drafted for each step. Adaptive K makes it vary.")
            ),
            widgets.tokens.head: heads.tokens(say("A run fills this: the tokens of both answers over time.")),
            **await self._totals(say),
        }

    async def refresh(self, request: gr.Request) -> dict[Any, Any]:
        """Count the drafts of all recorded steps anew."""
        return await self._totals(texts_for(request))

    async def _compare(self, request: gr.Request, asked: tuple[Any, ...], *, is_race: bool) -> Changes:
        session, say = session_of(request), texts_for(request)
        prompt, drafting, form = str(asked[0]).strip(), asked[1:4], asked[4:]
        if not prompt or self.turns.is_busy(session):
            yield {self.widgets.verdict: gr.skip()}
            return
        try:
            wanted = self._settings(drafting, form)
        except WorkbenchError as error:
            yield {self.widgets.verdict: note(str(error), is_error=True)}
            return
        last = Comparison(wanted, is_race)
        yield {**self.widgets.busy(True), **self._columns(last, say)}
        states = compare(self.service, prompt, wanted, self.turns, session, is_race=is_race, say=say)
        async with aclosing(states):
            async for last in states:
                if not last.is_final:
                    yield self._columns(last, say)
        if last.speedup is not None:
            self._keep(session, last)
        yield {
            **self.widgets.busy(False),
            **self._columns(last, say),
            **self._charts(session, last, say),
            **await self._totals(say),
        }

    def _settings(self, drafting: tuple[Any, ...], form: tuple[Any, ...]) -> AnswerSettings:
        """Sampling and system prompt as in the sidebar, drafting as on this tab."""
        system_prompt, values = form[0], list(form[1:])
        params = sampling_params(values, lambda: self.service.tokenizer)
        for name, value in zip(("method", "num_speculative_tokens", "speculative_adaptive"), drafting, strict=True):
            values[FIELDS.index(name)] = value
        name = self.service.status.model_name
        return AnswerSettings(name, system_prompt.strip(), params, priority_of(values), speculation_settings(values))

    def _columns(self, comparison: Comparison, say: Texts) -> dict[Any, Any]:
        return {
            self.widgets.plain: markup.plain_column(comparison, say),
            self.widgets.drafted: markup.drafted_column(comparison, say),
            self.widgets.verdict: markup.verdict(comparison, self.machine, say),
        }

    def _charts(self, session: str, comparison: Comparison, say: Texts) -> dict[Any, Any]:
        widgets, side = self.widgets, comparison.drafted
        changes: dict[Any, Any] = {widgets.run_facts: markup.run_facts(comparison, say)}
        if not side.steps:
            return changes
        return (
            changes
            | self._draft_charts(side, say)
            | self._speedup_chart(session, comparison, say)
            | self._token_chart(comparison, say)
        )

    def _draft_charts(self, side: Side, say: Texts) -> dict[Any, Any]:
        widgets, counts = self.widgets, side.statistics
        has_drafts = counts.num_drafts > 0
        about = say("share accepted of the drafts that got there; this run, n = {count}", count=counts.num_drafts)
        heads = ChartHeads(say)
        nothing = say("Nothing was drafted in this run.")
        length = "" if counts.mean_acceptance_length is None else f"{counts.mean_acceptance_length:.2f}"
        told = say("drafts by tokens accepted; mean tokens per verified draft {length}", length=length)
        return (
            widgets.by_position.filled(
                heads.by_position(about if has_drafts else nothing),
                figures.acceptance_by_position(counts, say) if has_drafts else None,
            )
            | widgets.lengths.filled(
                heads.lengths(told if has_drafts else nothing),
                figures.accepted_lengths(counts, say) if has_drafts else None,
            )
            | widgets.over_time.filled(
                heads.over_time(say("tokens drafted for each step of this run")), figures.drafted_over_time(side, say)
            )
        )

    def _speedup_chart(self, session: str, comparison: Comparison, say: Texts) -> dict[Any, Any]:
        costs = step_costs(comparison)
        method = comparison.wanted.speculation.method
        measured = [
            each
            for epoch, each in self._speedups.get(session, [])
            if epoch == self.service.status.epoch and each.method == method
        ]
        if costs is None and not measured:
            return {}
        called = say(dict(METHOD_WORDS)[method])
        about = say("dots measured in this tab with {method}", method=called)
        if costs is not None:
            about = say(
                "dots measured in this tab with {method}; line from this run: a {a}, c {c}, v {v}",
                method=called,
                a=f"{costs.acceptance:.2f}",
                c=f"{costs.draft:.2f}",
                v=f"{costs.verify:.2f}",
            )
        figure = figures.speedup_against_k(measured, costs, say)
        return self.widgets.speedup.filled(ChartHeads(say).speedup(about), figure)

    def _token_chart(self, comparison: Comparison, say: Texts) -> dict[Any, Any]:
        if comparison.is_race:
            about = say("both at once: the engine was shared, so the slopes are not compared")
        else:
            about = say("tokens of each answer over time, one run after the other; steeper is faster")
        figure = figures.tokens_over_time(comparison, say)
        return self.widgets.tokens.filled(ChartHeads(say).tokens(about), figure)

    async def _totals(self, say: Texts) -> dict[Any, Any]:
        records = self.service.recorder.since(-1)
        totals = await asyncio.to_thread(totals_of, records)
        widgets = self.widgets
        has_drafts = bool(totals.buckets)
        table = {"headers": markup.total_headers(say), "data": markup.total_rows(totals)}
        about = say("share of drafted tokens accepted, all requests") if has_drafts else say("Filled by drafts.")
        return {
            widgets.totals: markup.total_facts(totals, say),
            widgets.table: gr.Dataframe(table, visible=has_drafts),
            **widgets.all_over_time.filled(
                ChartHeads(say).all_over_time(about), figures.acceptance_over_time(totals, say) if has_drafts else None
            ),
        }

    def _keep(self, session: str, comparison: Comparison) -> None:
        """Keep a measured speedup for the chart; the least recent browser tab is forgotten."""
        wishes = comparison.wanted.speculation
        assert comparison.speedup is not None
        measured = MeasuredSpeedup(
            wishes.method, wishes.num_speculative_tokens, wishes.speculative_adaptive, comparison.speedup
        )
        kept = self._speedups.pop(session, [])[-SPEEDUPS_KEPT + 1 :]
        self._speedups[session] = [*kept, (self.service.status.epoch, measured)]
        while len(self._speedups) > SESSIONS_KEPT:
            self._speedups.popitem(last=False)


@dataclass(frozen=True)
class ChartHeads:
    """The names of the charts, each with a line on what it shows."""

    say: Texts

    def by_position(self, about: str) -> str:
        """Acceptance by position."""
        return markup.chart_head(self.say("Acceptance by position"), about)

    def lengths(self, about: str) -> str:
        """Accepted lengths."""
        return markup.chart_head(self.say("Accepted length"), about)

    def speedup(self, about: str) -> str:
        """Predicted against measured speedup."""
        return markup.chart_head(self.say("Speedup against K"), about)

    def over_time(self, about: str) -> str:
        """How many tokens were drafted."""
        return markup.chart_head(self.say("K over time"), about)

    def tokens(self, about: str) -> str:
        """How fast the tokens came."""
        return markup.chart_head(self.say("Tokens per second"), about)

    def all_over_time(self, about: str) -> str:
        """Acceptance over time, all requests."""
        return markup.chart_head(self.say("Acceptance over time"), about)
