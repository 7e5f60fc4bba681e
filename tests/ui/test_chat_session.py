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
from workbench.telemetry.records import FinishReason, RequestStatus
from workbench.ui.chat_session import (
    AnswerUpdate,
    Phase,
    PhaseKind,
    find_phase,
    stream_answer,
)
from workbench.ui.turns import Turn

ASKED = (Turn("user", "hello"),)
PARAMS = SamplingParams(max_tokens=8)
SOON_S = 5.0


def answer(service: Any, interval_s: float = 0.01, conversation: Any = ASKED) -> Any:
    return stream_answer(service, conversation, "", PARAMS, interval_s)


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
    assert (first.request_id, first.text, first.phase.words) == ("r1", "", "queued")
    assert len(service.prompts["r1"]) == 7
    assert service.params["r1"].max_tokens == 8


def test_answer_text_grows_in_more_than_one_update_and_ends_with_the_engines_figures():
    service = ScriptedService()

    async def scenario() -> list[AnswerUpdate]:
        seen = []
        async with aclosing(answer(service)) as updates:
            await anext(updates)
            service.token("r1", "Hel", 1)
            seen.append(await until(updates, lambda u: u.text == "Hel"))
            service.token("r1", "lo", 2)
            seen.append(await until(updates, lambda u: u.text == "Hello"))
            service.finish("r1", FinishReason.STOP, "!")
            seen.append(await until(updates, lambda u: u.is_final))
        return seen

    first, second, last = asyncio.run(scenario())
    assert (first.phase.words, second.phase.words) == ("decode 1", "decode 2")
    assert first.stats.finish_reason is None
    assert (last.text, last.phase.kind, last.error) == ("Hello!", PhaseKind.DONE, None)
    assert (last.stats.ttft_s, last.stats.tokens_per_s, last.stats.finish_reason) == (0.412, 25.0, FinishReason.STOP)
    assert service.aborted == []


def test_answer_first_token_does_not_wait_for_the_interval():
    service = ScriptedService()

    async def scenario() -> AnswerUpdate:
        async with aclosing(answer(service, interval_s=0.2)) as updates:
            await anext(updates)
            service.token("r1", "first", 1)
            await asyncio.sleep(0)
            return await anext(updates)

    assert asyncio.run(scenario()).text == "first"


def test_answer_left_early_aborts_its_request():
    service = ScriptedService()

    async def scenario() -> None:
        async with aclosing(answer(service)) as updates:
            await anext(updates)
            service.token("r1", "some", 1)
            await until(updates, lambda u: u.text == "some")

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
            assert (loading.request_id, loading.phase.kind) == (None, PhaseKind.LOADING)
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

    (only,) = asyncio.run(scenario())
    assert only.is_final
    assert only.error is not None
    assert (only.error.message, only.error.is_context_full) == (str(refusal), is_context_full)


@pytest.mark.parametrize(
    ("reason", "extra", "words", "is_context_full"),
    [
        (FinishReason.ERROR, {"error": "boom", "error_type": "EngineError"}, "boom", False),
        (FinishReason.ERROR, {"error": "pool too small", "error_type": "KVCacheExhaustedError"}, "pool", True),
        (FinishReason.ENGINE_RELOAD, {}, "reloaded", False),
    ],
)
def test_answer_that_fails_keeps_its_text_and_says_why(reason: Any, extra: Any, words: str, is_context_full: bool):
    service = ScriptedService()

    async def scenario() -> AnswerUpdate:
        async with aclosing(answer(service)) as updates:
            await anext(updates)
            service.token("r1", "half", 1)
            service.finish("r1", reason, **extra)
            return await until(updates, lambda u: u.is_final)

    last = asyncio.run(scenario())
    assert last.text == "half"
    assert last.error is not None
    assert words in last.error.message
    assert last.error.is_context_full is is_context_full


def test_answer_stopped_by_the_visitor_is_no_error():
    service = ScriptedService()

    async def scenario() -> AnswerUpdate:
        async with aclosing(answer(service)) as updates:
            await anext(updates)
            service.finish("r1", FinishReason.ABORT)
            return await until(updates, lambda u: u.is_final)

    last = asyncio.run(scenario())
    assert (last.stats.finish_reason, last.error) == (FinishReason.ABORT, None)


# --------------------------------------------------------------------------------- phases


def test_phase_counts_the_place_in_the_queue_among_those_that_wait():
    service = ScriptedService()
    waiting = RequestStatus.WAITING
    service.record(request_state("r1"), request_state("r2", waiting), request_state("r3", waiting))
    assert find_phase(service.recorder.latest, "r3")[0].words == "queued #2"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (request_state("r1"), "prefill 512/2,048"),
        (request_state("r1", num_output_tokens=116, is_prefill=False, num_computed_tokens=2163), "decode 116"),
        (request_state("r1", num_output_tokens=10, is_prefill=True), "prefill 512/2,058"),
        (request_state("r1", RequestStatus.PREEMPTED), "preempted"),
    ],
)
def test_phase_words_follow_the_engines_record(state: Any, words: str):
    service = ScriptedService()
    service.record(state)
    assert find_phase(service.recorder.latest, "r1")[0].words == words


def test_phase_is_queued_before_the_engine_has_heard_of_the_request():
    assert find_phase(None, "r1") == (Phase(PhaseKind.QUEUED), None)
