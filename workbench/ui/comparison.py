"""The same prompt with and without drafting: run one after the other, or both at once. No widget here.

Only runs one after the other give speeds that can be compared. Before them the prompt is computed
once, so that both find it in the prefix cache alike. Whatever ends the iteration also ends the
engine's requests.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from workbench.engine.service import EngineService
from workbench.speculation.statistics import AcceptanceStatistics
from workbench.speculation_params import NO_SPECULATION
from workbench.telemetry.records import FinishReason
from workbench.ui.active_turns import ActiveTurn, ActiveTurns
from workbench.ui.answer_trace import AnswerToken
from workbench.ui.chat_session import UPDATE_INTERVAL_S, AnswerUpdate, stream_answer
from workbench.ui.draft_steps import AnswerStep, statistics_of, steps_of
from workbench.ui.phases import Phase
from workbench.ui.texts import ENGLISH, Texts
from workbench.ui.turns import AnswerSettings, AnswerStats, ChatError, Turn

RECORD_WAIT_S: Final = 0.02
RECORD_WAITS: Final = 100
"""How often the record of an answer's last step is waited for: it comes right after the token."""


@dataclass(frozen=True)
class Side:
    """One of the two answers."""

    stats: AnswerStats = field(default_factory=AnswerStats)
    tokens: tuple[AnswerToken, ...] = ()
    phase: Phase | None = None
    """None before it has begun."""
    error: ChatError | None = None
    request_id: str | None = None
    is_final: bool = False
    steps: tuple[AnswerStep, ...] = ()
    """Known once it has ended."""

    @property
    def is_whole(self) -> bool:
        """Whether it came to an end of its own: what was stopped or failed is not compared."""
        return self.is_final and self.stats.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)

    @property
    def decoding(self) -> tuple[AnswerStep, ...]:
        """Its steps after the one that ended the prompt."""
        return self.steps[1:]

    @property
    def statistics(self) -> AcceptanceStatistics:
        """Counts over its drafts."""
        return statistics_of(self.steps)

    @property
    def num_others(self) -> int:
        """Most other requests that were computed in one of its steps."""
        return max((step.num_others for step in self.steps), default=0)


@dataclass(frozen=True)
class Comparison:
    """Both answers as they stand."""

    wanted: AnswerSettings
    """Of the answer that is drafted for; the other one differs in nothing else."""
    is_race: bool = False
    """Both at once: their speeds are shared and not compared."""
    plain: Side = Side()
    drafted: Side = Side()
    is_final: bool = False

    def having(self, plain: Side, drafted: Side) -> Comparison:
        """Return the comparison with both answers as they stand now."""
        return replace(self, plain=plain, drafted=drafted)

    @property
    def is_whole(self) -> bool:
        """Whether both came to an end of their own."""
        return self.plain.is_whole and self.drafted.is_whole

    @property
    def differs_at(self) -> int | None:
        """Place of the first token that differs, None where all that both have is the same."""
        both = itertools.zip_longest(self.plain.tokens, self.drafted.tokens)
        pairs = ((a and a.token_id, b and b.token_id) for a, b in both)
        return next((place for place, (mine, other) in enumerate(pairs) if mine != other), None)

    @property
    def speedup(self) -> float | None:
        """How many times the tokens per second of plain decoding; None where that cannot be said."""
        plain, drafted = self.plain.stats.tokens_per_s, self.drafted.stats.tokens_per_s
        if self.is_race or not self.is_whole or not plain or not drafted:
            return None
        return drafted / plain


async def compare(
    service: EngineService,
    prompt: str,
    wanted: AnswerSettings,
    turns: ActiveTurns,
    session: str,
    *,
    is_race: bool = False,
    say: Texts = ENGLISH,
) -> AsyncGenerator[Comparison, None]:
    """Answer a prompt twice and yield how both stand, about nine times a second.

    Args:
        service: the engine door.
        prompt: the message, without a conversation before it.
        wanted: with drafting on; several answers, beams and log-probabilities are left out of it.
        turns: where Stop finds what is under way for `session`.
        session: the browser tab.
        is_race: both at once.
        say: the visitor's language.
    """
    params = msgspec.structs.replace(wanted.params, n=1, use_beam_search=False, logprobs=None)
    wanted = replace(wanted, params=params)
    runner = _Runner(service, (Turn("user", prompt),), turns, session, say)
    state = Comparison(wanted, is_race)
    whole = turns.start(session)
    try:
        async with aclosing(_race(runner, state) if is_race else _in_turn(runner, state, whole)) as states:
            async for state in states:
                yield state
    finally:
        turns.end(session, whole)
    yield replace(state, is_final=True)


async def _in_turn(runner: _Runner, state: Comparison, whole: ActiveTurn) -> AsyncGenerator[Comparison, None]:
    warm_up = msgspec.structs.replace(state.wanted.params, max_tokens=1, min_tokens=0)
    plain = replace(state.wanted, speculation=NO_SPECULATION)
    async with aclosing(runner.run(replace(plain, params=warm_up))) as sides:
        async for side in sides:
            if side.error is not None:  # refused: it says why
                yield replace(state, plain=side)
                return
            yield state
    both = [state.plain, state.drafted]
    for index, settings in enumerate((plain, state.wanted)):
        if whole.is_stopped:
            return
        async with aclosing(runner.run(settings)) as sides:
            async for side in sides:
                both[index] = side
                yield state.having(*both)
        if both[index].error is not None:
            return


async def _race(runner: _Runner, state: Comparison) -> AsyncGenerator[Comparison, None]:
    latest = [state.plain, state.drafted]

    async def follow(index: int, settings: AnswerSettings) -> None:
        async with aclosing(runner.run(settings)) as sides:
            async for side in sides:
                latest[index] = side

    tasks = [
        asyncio.create_task(follow(0, replace(state.wanted, speculation=NO_SPECULATION))),
        asyncio.create_task(follow(1, state.wanted)),
    ]
    try:
        pending: set[asyncio.Task[None]] = set(tasks)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=UPDATE_INTERVAL_S)
            yield state.having(*latest)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True)
class _Runner:
    """Asks the engine for one answer after another to the same message."""

    service: EngineService
    asked: tuple[Turn, ...]
    turns: ActiveTurns
    session: str
    say: Texts

    async def run(self, settings: AnswerSettings) -> AsyncGenerator[Side, None]:
        turn = self.turns.start(self.session)
        newest = self.service.recorder.latest
        before = -1 if newest is None else newest.step_id
        side = Side()
        try:
            updates = stream_answer(self.service, self.asked, settings, say=self.say)
            async with aclosing(updates):
                async for update in updates:
                    turn.request_id = update.request_id
                    side = _side(update)
                    if update.is_final or (turn.is_stopped and update.request_id is None):
                        break
                    yield side
        finally:
            self.turns.end(self.session, turn)
        if not side.is_final:  # stopped before the engine had heard of it
            side = replace(side, stats=AnswerStats(finish_reason=FinishReason.ABORT), is_final=True)
        yield replace(side, steps=await self._steps(side, before))

    async def _steps(self, side: Side, before: int) -> tuple[AnswerStep, ...]:
        """The record of an answer's steps. The last one is written just after its token is sent."""
        request_id = side.request_id
        if request_id is None:
            return ()
        steps: tuple[AnswerStep, ...] = ()
        for _ in range(RECORD_WAITS):
            newest = self.service.recorder.latest
            is_reloaded = newest is not None and newest.step_id < before
            steps = steps_of(self.service.recorder.since(-1 if is_reloaded else before), request_id)
            if sum(step.num_new_tokens for step in steps) >= len(side.tokens):
                break
            await asyncio.sleep(RECORD_WAIT_S)
        return steps


def _side(update: AnswerUpdate) -> Side:
    (answer,) = update.answers
    return Side(answer.stats, update.tokens, update.phases[0], answer.error, update.request_id, update.is_final)


@dataclass(frozen=True)
class StepCosts:
    """What drafting and verifying cost, in plain steps (`statistics.predicted_speedup`)."""

    acceptance: float
    """Of one drafted token, over those that were reached: the ones before it stood."""
    draft: float
    """Time of drafting one token."""
    verify: float
    """Time of a step that verifies a draft of the mean length."""
    num_draft_tokens: float
    """That mean length."""

    def verify_of(self, num_draft_tokens: int) -> float:
        """Time of a step that verifies so many tokens, on the line through a plain step and the measured one."""
        return 1 + (self.verify - 1) * num_draft_tokens / self.num_draft_tokens


def step_costs(comparison: Comparison) -> StepCosts | None:
    """Measure them in a comparison; None where it has no plain steps or no drafts."""
    plain = [step.duration_s for step in comparison.plain.decoding]
    drafted = [step for step in comparison.drafted.decoding if step.num_draft_tokens]
    if comparison.is_race or not plain or not drafted or not sum(plain):
        return None
    plain_s = sum(plain) / len(plain)
    num_drafted = sum(step.num_draft_tokens for step in drafted)
    num_reached = sum(min(step.num_draft_tokens, step.num_accepted_tokens + 1) for step in drafted)
    return StepCosts(
        acceptance=sum(step.num_accepted_tokens for step in drafted) / num_reached,
        draft=sum(step.draft_s for step in comparison.drafted.decoding) / num_drafted / plain_s,
        verify=_mean([step.duration_s - step.draft_s for step in drafted]) / plain_s,
        num_draft_tokens=num_drafted / len(drafted),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
