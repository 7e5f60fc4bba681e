"""The same prompt with and without drafting: what runs when, what is compared, and what the page says of it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from tests.ui.scripted_service import ScriptedService, request_state
from workbench.errors import QueueFullError
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import SpeculationParams
from workbench.telemetry.records import FinishReason
from workbench.ui import comparison_markup as markup
from workbench.ui.active_turns import ActiveTurns
from workbench.ui.answer_trace import AnswerToken, TokenSource
from workbench.ui.comparison import Comparison, Side, compare, step_costs
from workbench.ui.draft_steps import AnswerStep
from workbench.ui.turns import AnswerSettings, AnswerStats

SOON_S = 10.0
DRAFTING = SpeculationParams(method="ngram", num_speculative_tokens=3)
WANTED = AnswerSettings("scripted", "", SamplingParams(temperature=0.0, max_tokens=8, n=3), speculation=DRAFTING)


def states_of(service: Any, **options: Any) -> tuple[Any, ActiveTurns]:
    turns = ActiveTurns(service)
    return compare(service, "hello", WANTED, turns, "tab-1", **options), turns


async def until(states: Any, is_it: Any) -> Comparison:
    async with asyncio.timeout(SOON_S):
        async for state in states:
            if is_it(state):
                assert isinstance(state, Comparison)
                return state
    raise AssertionError("the comparison ended before the state that was waited for")


def finish(service: ScriptedService, name: str, num_tokens: int = 0) -> None:
    """End a request, its steps recorded."""
    if num_tokens:
        service.record(request_state(name, num_new_tokens=num_tokens, is_prefill=False))
    service.finish(name, FinishReason.LENGTH)


def test_prompt_is_computed_once_before_and_then_both_run_one_after_the_other():
    service: Any = ScriptedService()

    async def scenario() -> Comparison:
        states, _ = states_of(service)
        async with aclosing(states):
            await until(states, lambda _: "r1" in service.prompts)
            finish(service, "r1")
            await until(states, lambda _: "r2" in service.prompts)
            assert "r3" not in service.prompts
            service.tokens("r2", "ab", 0, 0, 0)
            finish(service, "r2", 2)
            await until(states, lambda _: "r3" in service.prompts)
            service.tokens("r3", "ab", 0, 3, 1)
            finish(service, "r3", 2)
            return await until(states, lambda state: state.is_final)

    last = asyncio.run(scenario())
    assert [service.params[name].max_tokens for name in ("r1", "r2", "r3")] == [1, 8, 8]
    assert [service.params[name].n for name in ("r1", "r2", "r3")] == [1, 1, 1]
    assert [service.speculation[name].method for name in ("r1", "r2", "r3")] == ["none", "none", "ngram"]
    assert last.is_whole
    assert last.differs_at is None
    assert last.speedup == 1.0  # both have the scripted figures
    assert [token.source for token in last.drafted.tokens] == [TokenSource.ACCEPTED, TokenSource.RECOVERED]


def test_race_asks_for_both_at_once_and_compares_no_speed():
    service: Any = ScriptedService()

    async def scenario() -> Comparison:
        states, _ = states_of(service, is_race=True)
        async with aclosing(states):
            await until(states, lambda _: len(service.prompts) == 2)
            service.tokens("r1", "ab", 0, 0, 0)
            service.tokens("r2", "ax", 0, 3, 1)
            service.record(*(request_state(name, num_new_tokens=2) for name in ("r1", "r2")))
            finish(service, "r1")
            finish(service, "r2")
            return await until(states, lambda state: state.is_final)

    last = asyncio.run(scenario())
    assert sorted(each.method for each in service.speculation.values()) == ["ngram", "none"]
    assert (last.differs_at, last.speedup) == (1, None)
    assert '<i class="wb-tag">shared</i>' in markup.plain_column(last)
    assert "speeds are not compared" in markup.verdict(last, "a machine")
    assert "differs at token 2" in markup.drafted_column(last)


@pytest.mark.parametrize("is_race", [False, True])
def test_leaving_aborts_what_is_under_way(is_race: bool):
    service: Any = ScriptedService()

    async def scenario() -> None:
        states, turns = states_of(service, is_race=is_race)
        async with aclosing(states):
            await until(states, lambda _: len(service.prompts) == 1 + is_race)
            assert turns.is_busy("tab-1")
        assert not turns.is_busy("tab-1")

    asyncio.run(scenario())
    assert sorted(service.aborted) == (["r1", "r2"] if is_race else ["r1"])


def test_stop_ends_the_first_and_never_begins_the_second():
    service: Any = ScriptedService()

    async def scenario() -> Comparison:
        states, turns = states_of(service)
        async with aclosing(states):
            await until(states, lambda _: "r1" in service.prompts)
            finish(service, "r1")
            await until(states, lambda state: state.plain.request_id == "r2")
            turns.stop("tab-1")
            service.finish("r2", FinishReason.ABORT)
            return await until(states, lambda state: state.is_final)

    last = asyncio.run(scenario())
    assert service.aborted == ["r2"]
    assert list(service.prompts) == ["r1", "r2"]
    assert (last.is_whole, last.speedup) == (False, None)
    assert "not compared: incomplete" in markup.badge(last)


def test_refusal_is_shown_and_nothing_else_is_asked():
    service: Any = ScriptedService()
    service.refusal = QueueFullError("the queue is full")

    async def scenario() -> Comparison:
        states, _ = states_of(service)
        async with aclosing(states):
            return await until(states, lambda state: state.is_final)

    assert "the queue is full" in markup.plain_column(asyncio.run(scenario()))
    assert service.prompts == {}


# ----------------------------------------------------------------------- what follows from both


def side(text: str, *steps: AnswerStep, rate: float = 10.0, reason: FinishReason = FinishReason.STOP) -> Side:
    tokens = tuple(AnswerToken(ord(character), character) for character in text)
    return Side(AnswerStats(tokens_per_s=rate, finish_reason=reason), tokens, is_final=True, steps=steps)


def step(number: int, new: int, drafted: int = 0, accepted: int = 0, duration_s: float = 0.1, draft_s: float = 0.0):
    return AnswerStep(
        number, float(number), duration_s, draft_s, duration_s - draft_s, new, drafted, accepted, False, 0
    )


def compared(plain: Side, drafted: Side, temperature: float = 0.0, is_race: bool = False) -> Comparison:
    wanted = AnswerSettings("tiny", "", SamplingParams(temperature=temperature), speculation=DRAFTING)
    return Comparison(wanted, is_race, plain, drafted, is_final=True)


def test_badge_says_identical_only_of_two_whole_answers_at_temperature_zero():
    assert "identical ✓" in markup.badge(compared(side("abc"), side("abc")))
    assert "differs at token 3" in markup.badge(compared(side("abc"), side("abx")))
    assert "differs at token 4" in markup.badge(compared(side("abc"), side("abcd")))
    sampled = markup.badge(compared(side("abc"), side("xyz"), temperature=0.7))
    assert "same distribution" in sampled
    assert 'href="#wb-proof"' in sampled
    stopped = compared(side("abc"), side("ab", reason=FinishReason.ABORT))
    assert "not compared" in markup.badge(stopped)
    assert "identical" not in markup.badge(stopped)


def test_tokens_are_coloured_from_the_first_that_differs_on():
    text = markup.drafted_column(compared(side("a<c"), side("a<d")))
    assert '<span class="wb-from-target">&lt;</span><span class="wb-from-target wb-differs">d</span>' in text


def test_verdict_gives_the_speedup_and_what_was_run_where():
    text = markup.verdict(compared(side("a", rate=20.0), side("a", rate=37.6)), "AMD EPYC, 2 cores")
    assert "1.88× as fast" in text
    assert "37.6 against 20.0 tok/s" in text
    assert "One after the other on AMD EPYC, 2 cores, greedy, no other requests." in text


def test_costs_are_measured_in_plain_steps():
    plain = side("abcd", step(1, 1), *(step(number, 1, duration_s=0.1) for number in (2, 3, 4)))
    drafted = side(
        "abcd",
        step(5, 1),
        step(6, 3, 4, 2, duration_s=0.2, draft_s=0.04),
        step(7, 1, 4, 0, duration_s=0.2, draft_s=0.04),
    )
    costs = step_costs(compared(plain, drafted))
    assert costs is not None
    assert costs.acceptance == pytest.approx(2 / 4)  # of three and one that were reached
    assert costs.draft == pytest.approx(0.1)
    assert costs.verify == pytest.approx(1.6)
    assert costs.verify_of(4) == pytest.approx(1.6)
    assert costs.verify_of(0) == 1
    assert step_costs(compared(plain, drafted, is_race=True)) is None
    assert step_costs(compared(plain, plain)) is None


def test_facts_of_a_run_count_what_was_wasted():
    text = markup.run_facts(compared(side("a"), side("abc", step(1, 1), step(2, 2, 4, 1, 0.2, 0.05))))
    for row in ("<dt>Drafted tokens</dt><dd>4</dd>", "<dt>Accepted</dt><dd>1 (0.25)</dd>", "<dt>Wasted</dt><dd>3</dd>"):
        assert row in text
    assert "<dt>Time drafting</dt><dd>50.0 ms</dd>" in text
    assert "<dt>Time in steps that verify</dt><dd>1 × 150 ms</dd>" in text
