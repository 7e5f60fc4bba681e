"""One chat turn: what the page would draw, and that the engine's request ends with it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from tests.ui.scripted_service import ScriptedService, request_state
from workbench.engine.messages import ServiceState
from workbench.errors import PromptTooLongError, QueueFullError
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import SpeculationParams
from workbench.telemetry.records import CacheMiss, FinishReason
from workbench.ui.chat_session import AnswerUpdate, stream_answer
from workbench.ui.phases import Phase, PhaseKind
from workbench.ui.turns import Answer, AnswerSettings, Turn

ASKED = (Turn("user", "hello"),)
PARAMS = SamplingParams(max_tokens=8)
SOON_S = 5.0


def answer(service: Any, interval_s: float = 0.01, params: SamplingParams = PARAMS, priority: int = 0) -> Any:
    return stream_answer(service, ASKED, AnswerSettings("scripted", "", params, priority), interval_s)


def only(update: AnswerUpdate) -> Answer:
    """The one answer of an update."""
    (one,) = update.answers
    return one


def words(update: AnswerUpdate) -> str:
    """The phase of the one answer of an update."""
    (phase,) = update.phases
    return phase.words


async def until(updates: Any, is_it: Any) -> AnswerUpdate:
    async with asyncio.timeout(SOON_S):
        async for update in updates:
            if is_it(update):
                return update
    raise AssertionError("the answer ended before the update that was waited for")


def test_answer_starts_in_the_queue_and_sends_the_templated_conversation():
    service = ScriptedService()

    async def scenario() -> AnswerUpdate:
        async with aclosing(answer(service)) as updates:
            return await anext(updates)

    first = asyncio.run(scenario())
    assert (first.request_id, only(first).text, words(first)) == ("r1", "", "queued")
    assert len(service.prompts["r1"]) == 7
    assert service.params["r1"].max_tokens == 8


def test_answer_text_grows_in_more_than_one_update_and_ends_with_the_engines_figures():
    service = ScriptedService()

    async def scenario() -> list[AnswerUpdate]:
        seen = []
        async with aclosing(answer(service)) as updates:
            await anext(updates)
            service.token("r1", "Hel", 1)
            seen.append(await until(updates, lambda u: only(u).text == "Hel"))
            service.token("r1", "lo", 2)
            seen.append(await until(updates, lambda u: only(u).text == "Hello"))
            service.finish("r1", FinishReason.STOP, "!")
            seen.append(await until(updates, lambda u: u.is_final))
        return seen

    first, second, last = asyncio.run(scenario())
    assert (words(first), words(second)) == ("decode 1", "decode 2")
    assert only(first).stats.finish_reason is None
    assert last.phases == (Phase(PhaseKind.DONE),)
    assert (only(last).text, only(last).error) == ("Hello!", None)
    stats = only(last).stats
    assert (stats.ttft_s, stats.tokens_per_s, stats.finish_reason) == (0.412, 25.0, FinishReason.STOP)
    assert service.aborted == []


def test_answer_first_token_does_not_wait_for_the_interval():
    service = ScriptedService()

    async def scenario() -> AnswerUpdate:
        async with aclosing(answer(service, interval_s=0.2)) as updates:
            await anext(updates)
            service.token("r1", "first", 1)
            await asyncio.sleep(0)
            return await anext(updates)

    assert only(asyncio.run(scenario())).text == "first"


def test_answer_left_early_aborts_its_request():
    service = ScriptedService()

    async def scenario() -> None:
        async with aclosing(answer(service)) as updates:
            await anext(updates)
            service.token("r1", "some", 1)
            await until(updates, lambda u: only(u).text == "some")

    asyncio.run(scenario())
    assert service.aborted == ["r1"]


def test_answer_cancelled_while_it_waits_aborts_its_request():
    service = ScriptedService()

    async def scenario() -> None:
        async def read() -> None:
            async with aclosing(answer(service)) as updates:
                async for _ in updates:
                    pass

        task = asyncio.create_task(read())
        while not service.listeners:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert service.aborted == ["r1"]


def test_answer_waits_while_the_model_loads_and_is_sent_afterwards():
    service = ScriptedService()
    service.set_state(ServiceState.LOADING)

    async def scenario() -> AnswerUpdate:
        async with aclosing(answer(service)) as updates:
            loading = await anext(updates)
            assert (loading.request_id, words(loading)) == (None, "loading")
            service.set_state(ServiceState.READY)
            return await until(updates, lambda u: u.request_id is not None)

    assert asyncio.run(scenario()).request_id == "r1"


@pytest.mark.parametrize(
    ("refusal", "is_context_full"),
    [
        (PromptTooLongError("9 tokens, 8 allowed"), True),
        (QueueFullError("64 wait, 64 allowed"), False),
    ],
)
def test_answer_refused_at_the_door_is_one_final_message(refusal: Any, is_context_full: bool):
    service = ScriptedService()
    service.refusal = refusal

    async def scenario() -> list[AnswerUpdate]:
        return [update async for update in answer(service)]

    (update,) = asyncio.run(scenario())
    error = only(update).error
    assert update.is_final
    assert error is not None
    assert (error.message, error.is_context_full) == (str(refusal), is_context_full)


@pytest.mark.parametrize(
    ("reason", "extra", "said", "is_context_full"),
    [
        (FinishReason.ERROR, {"error": "boom", "error_type": "EngineError"}, "boom", False),
        (FinishReason.ERROR, {"error": "pool too small", "error_type": "KVCacheExhaustedError"}, "pool", True),
        (FinishReason.ENGINE_RELOAD, {}, "reloaded", False),
    ],
)
def test_answer_that_fails_keeps_its_text_and_says_why(reason: Any, extra: Any, said: str, is_context_full: bool):
    service = ScriptedService()

    async def scenario() -> AnswerUpdate:
        async with aclosing(answer(service)) as updates:
            await anext(updates)
            service.token("r1", "half", 1)
            service.finish("r1", reason, **extra)
            return await until(updates, lambda u: u.is_final)

    last = only(asyncio.run(scenario()))
    assert last.text == "half"
    assert last.error is not None
    assert said in last.error.message
    assert last.error.is_context_full is is_context_full


def test_answer_stopped_by_the_visitor_is_no_error():
    service = ScriptedService()

    async def scenario() -> AnswerUpdate:
        async with aclosing(answer(service)) as updates:
            await anext(updates)
            service.finish("r1", FinishReason.ABORT)
            return await until(updates, lambda u: u.is_final)

    last = only(asyncio.run(scenario()))
    assert (last.stats.finish_reason, last.error) == (FinishReason.ABORT, None)


# -------------------------------------------------------------------- several answers, beams

THREE = SamplingParams(max_tokens=8, n=3)
BEAMS = SamplingParams(max_tokens=8, n=2, use_beam_search=True, beam_width=2)


def test_answers_grow_and_end_each_by_itself():
    service = ScriptedService()

    async def scenario() -> tuple[AnswerUpdate, AnswerUpdate]:
        async with aclosing(answer(service, params=THREE)) as updates:
            await anext(updates)
            service.token("r1", "b", 1, index=1)
            service.token("r1", "a", 1)
            service.finish("r1", FinishReason.LENGTH, "!", index=1)
            streaming = await until(updates, lambda u: u.answers[1].text == "b!")
            service.finish("r1", FinishReason.ERROR, index=2, error="boom")
            service.finish("r1")
            return streaming, await until(updates, lambda u: u.is_final)

    streaming, last = asyncio.run(scenario())
    assert [each.text for each in streaming.answers] == ["a", "b!", ""]
    assert [phase.kind for phase in streaming.phases] == [PhaseKind.DECODE, PhaseKind.DONE, PhaseKind.QUEUED]
    assert streaming.answers[1].stats.finish_reason is FinishReason.LENGTH
    assert [each.text for each in last.answers] == ["a", "b!", ""]
    assert [each.stats.finish_reason for each in last.answers] == ["stop", "length", "error"]
    assert [each.error and each.error.message for each in last.answers] == [None, None, "boom"]
    assert [each.text for each in last.turn.answers] == ["a", "b!", ""]
    assert service.aborted == []


def test_answers_that_have_not_parted_stand_where_their_request_stands():
    service = ScriptedService()

    async def scenario() -> AnswerUpdate:
        async with aclosing(answer(service, params=THREE)) as updates:
            await anext(updates)
            service.record(request_state("r1", num_sequences=3))
            return await until(updates, lambda u: u.phases[0].kind is PhaseKind.PREFILL)

    assert [phase.words for phase in asyncio.run(scenario()).phases] == ["prefill 512/2,048"] * 3


def test_answers_left_early_abort_their_request_once():
    service = ScriptedService()

    async def scenario() -> None:
        async with aclosing(answer(service, params=THREE)) as updates:
            await anext(updates)
            service.finish("r1", index=0)
            await until(updates, lambda u: u.answers[0].stats.finish_reason is not None)

    asyncio.run(scenario())
    assert service.aborted == ["r1"]


def test_beams_say_how_long_they_are_until_they_come_with_their_scores():
    service = ScriptedService()

    async def scenario() -> tuple[AnswerUpdate, AnswerUpdate]:
        async with aclosing(answer(service, params=BEAMS)) as updates:
            await anext(updates)
            service.record(request_state("r1", num_output_tokens=5, is_prefill=False))
            searching = await until(updates, lambda u: u.phases[0].kind is PhaseKind.BEAMS)
            for index, score in enumerate((-0.4, -0.9)):
                service.token("r1", "abc"[index:], 8, index=index)
                service.finish("r1", FinishReason.LENGTH, index=index, beam_score=score)
                if index == 0:  # one alone is not shown
                    service.record(request_state("r1", num_output_tokens=6, is_prefill=False))
                    searching = await until(updates, lambda u: u.phases[0].num_done == 6)
            return searching, await until(updates, lambda u: u.is_final)

    searching, last = asyncio.run(scenario())
    assert [phase.words for phase in searching.phases] == ["beam search, length 6; its text comes at the end"] * 2
    assert [each.text for each in searching.answers] == ["", ""]
    assert [(each.text, each.stats.beam_score) for each in last.answers] == [("abc", -0.4), ("bc", -0.9)]
    assert [last.turn.label(index) for index in range(2)] == ["Beam 1 · score −0.40", "Beam 2 · score −0.90"]


def test_priority_goes_with_the_request():
    service = ScriptedService()

    async def scenario() -> None:
        async with aclosing(answer(service, priority=-3)) as updates:
            await anext(updates)

    asyncio.run(scenario())
    assert service.priorities == {"r1": -3}


def test_answer_says_what_the_cache_held_of_its_prompt_and_why_no_more():
    service = ScriptedService()

    async def scenario() -> AnswerUpdate:
        async with aclosing(answer(service)) as updates:
            await anext(updates)
            service.record(
                request_state("r1", num_cached_tokens=160, cache_miss=CacheMiss.DIFFERS, differs_at=170),
            )
            service.record(request_state("r1", num_cached_tokens=320, cache_miss=None))  # after a preemption
            service.finish("r1")
            return await until(updates, lambda u: u.is_final)

    stats = only(asyncio.run(scenario())).stats
    assert (stats.num_cached_tokens, stats.cache_miss, stats.differs_at) == (160, CacheMiss.DIFFERS, 170)


def test_drafting_goes_with_the_request_and_the_answer_counts_what_was_accepted():
    service: Any = ScriptedService()
    drafting = SpeculationParams(method="ngram", num_speculative_tokens=3)
    wanted = AnswerSettings("scripted", "", PARAMS, speculation=drafting)

    async def scenario() -> AnswerUpdate:
        async with aclosing(stream_answer(service, ASKED, wanted, 0.01)) as updates:
            await anext(updates)
            service.tokens("r1", "abc", num_before=0, num_drafted=3, num_accepted=2)
            service.tokens("r1", "de", num_before=3, num_drafted=1, num_accepted=1)
            return await until(updates, lambda update: only(update).stats.num_output_tokens == 5)

    stats = only(asyncio.run(scenario())).stats
    assert service.speculation == {"r1": drafting}
    assert (stats.num_accepted_tokens, stats.num_draft_tokens) == (3, 4)
