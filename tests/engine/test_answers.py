"""Several answers to one request at the door: names, ends, and what they survive. On a tiny random model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict

import msgspec
import pytest

from workbench.engine.messages import Event, RequestFinished, TokenEvent
from workbench.engine.service import EngineService
from workbench.errors import QueueFullError
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import TransferKind

DEADLINE_S = 20
EIGHT = SamplingParams(n=3, temperature=1.0, seed=7, ignore_eos=True, max_tokens=8)
ENDLESS = msgspec.structs.replace(EIGHT, max_tokens=None)
BEAMS = SamplingParams(use_beam_search=True, beam_width=4, n=3, max_tokens=None, ignore_eos=True)


class Answers:
    """Collects the events of one request, by answer."""

    def __init__(self, num_answers: int = 3) -> None:
        self.token_ids: dict[str, list[int]] = defaultdict(list)
        self.ends: dict[str, list[RequestFinished]] = defaultdict(list)
        self.have_parted = threading.Event()
        self._num_answers = num_answers
        self._has_changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._has_changed:
            if isinstance(event, TokenEvent):
                self.token_ids[event.request_id] += event.token_ids
            else:
                self.ends[event.request_id].append(event)
            if len(self.token_ids) == self._num_answers:
                self.have_parted.set()
            self._has_changed.notify_all()

    def wait_for_ends(self, count: int | None = None) -> dict[str, str]:
        """Wait until so many answers have ended; return name → reason. Each has ended once."""
        count = self._num_answers if count is None else count
        with self._has_changed:
            assert self._has_changed.wait_for(lambda: len(self.ends) >= count, DEADLINE_S), f"only {self.ends} ended"
        assert [len(ends) for ends in self.ends.values()] == [1] * len(self.ends)
        return {name: str(end.finish_reason) for name, (end,) in self.ends.items()}


@pytest.fixture
def make_service(make_service):
    """The same with a pool that has room for several answers."""
    return lambda **settings: make_service(**{"num_blocks": 100, **settings})


def num_active(service: EngineService) -> int:
    return sum(block.ref_count > 0 for block in service.pool_snapshot().blocks)


def wait_until_idle(service: EngineService) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while (service.num_open_requests or num_active(service)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (service.num_open_requests, num_active(service)) == (0, 0)


def run(service: EngineService, params: SamplingParams = EIGHT, prompt: str = "hello") -> list[list[int]]:
    """Let a request answer in full; return the tokens of its answers, by index."""
    answers = Answers(params.n)
    name = service.submit(prompt, params, answers)
    assert set(answers.wait_for_ends().values()) == {"length"}
    return [answers.token_ids[name if index == 0 else f"{name}.{index}"] for index in range(params.n)]


def step_by_hand(service: EngineService, count: int) -> None:
    """Let a paused engine make so many steps, and stand again."""

    def steps(core):
        for _ in range(count):
            service._worker._step()

    service._call(steps)


# ------------------------------------------------------------------------------------- names and ends


def test_answers_have_names_of_their_own_and_one_end_each(make_service):
    service = make_service()
    answers = Answers()
    assert service.submit("hello", EIGHT, answers) == "r1"

    assert answers.wait_for_ends() == {"r1": "length", "r1.1": "length", "r1.2": "length"}
    assert [answers.ends[name][0].index for name in ("r1", "r1.1", "r1.2")] == [0, 1, 2]
    assert [len(answers.token_ids[name]) for name in ("r1", "r1.1", "r1.2")] == [8, 8, 8]
    wait_until_idle(service)


def test_name_of_an_open_answer_is_not_given_away(make_service):
    service = make_service()
    stop_early = run(service)[0][0]
    answers = Answers()
    service.pause()
    service.submit("hello", msgspec.structs.replace(ENDLESS, stop_token_ids=[stop_early]), answers, "mine")
    step_by_hand(service, 1)
    assert {name: answers.ends[name] != [] for name in ("mine", "mine.1")} == {"mine": True, "mine.1": False}

    for name in ("mine", "mine.1"):
        with pytest.raises(ValueError, match=f"request_id='{name}' is in use"):
            service.submit("x", EIGHT, Answers(), name)


def test_queue_counts_answers(make_service):
    service = make_service(max_num_seqs=3, max_num_waiting=1)
    service.pause()
    answers = Answers()
    service.submit("hello", EIGHT, answers)
    with pytest.raises(QueueFullError, match="3 requests are open and at most 4"):
        service.submit("x", SamplingParams(n=2), Answers(2))
    service.resume()

    assert set(answers.wait_for_ends().values()) == {"length"}


def test_answers_that_the_engine_never_saw_all_end_when_it_stops(make_service):
    service = make_service()
    is_held, may_go_on = threading.Event(), threading.Event()

    def hold(core):
        is_held.set()
        may_go_on.wait(DEADLINE_S)

    holding = threading.Thread(target=lambda: service._call(hold))
    holding.start()
    assert is_held.wait(DEADLINE_S)
    stopping = threading.Thread(target=service.shutdown)
    stopping.start()
    while not service._worker.is_stopping:
        time.sleep(0.001)
    answers = Answers()
    service.submit("hello", EIGHT, answers)
    may_go_on.set()
    holding.join()
    stopping.join()

    assert answers.wait_for_ends() == {"r1": "error", "r1.1": "error", "r1.2": "error"}
    assert [end.index for (end,) in answers.ends.values()] == [0, 1, 2]
    assert service.num_open_requests == 0


# ------------------------------------------------------------------------------------- abort


@pytest.mark.parametrize("params", [ENDLESS, BEAMS], ids=["answers", "beams"])
def test_trap_27_abort_before_the_first_step_ends_every_answer_once(make_service, params):
    service = make_service()
    service.pause()
    answers = Answers()
    service.submit("hello", params, answers)
    service.abort("r1")

    assert answers.wait_for_ends() == {"r1": "abort", "r1.1": "abort", "r1.2": "abort"}
    service.resume()
    wait_until_idle(service)
    assert len(run(service)) == 3


def test_trap_27_abort_after_they_parted_ends_every_answer_once(make_service):
    service = make_service()
    answers = Answers()
    service.submit("hello", ENDLESS, answers)
    assert answers.have_parted.wait(DEADLINE_S)
    service.abort("r1")

    assert answers.wait_for_ends() == {"r1": "abort", "r1.1": "abort", "r1.2": "abort"}
    wait_until_idle(service)


def test_trap_27_abort_of_a_beam_search_that_runs_ends_all_its_answers_once(make_service):
    service = make_service()
    service.pause()
    answers = Answers()
    service.submit("hello", BEAMS, answers)
    step_by_hand(service, 5)
    assert num_active(service) > 0
    service.abort("r1")

    assert answers.wait_for_ends() == {"r1": "abort", "r1.1": "abort", "r1.2": "abort"}
    assert num_active(service) == 0


@pytest.mark.parametrize("num_steps", [0, 1, 4], ids=["before they parted", "just parted", "later"])
@pytest.mark.parametrize("index", [1, 2])
def test_abort_of_one_answer_leaves_the_others_going(make_service, num_steps, index):
    service = make_service()
    expected = run(service)
    service.pause()
    answers = Answers()
    name = service.submit("hello", EIGHT, answers)
    step_by_hand(service, num_steps)
    service.abort(f"{name}.{index}")
    service.resume()

    ends = answers.wait_for_ends()
    assert ends == {name: "length", f"{name}.1": "length", f"{name}.2": "length"} | {f"{name}.{index}": "abort"}
    for other in {0, 1, 2} - {index}:
        assert answers.token_ids[name if other == 0 else f"{name}.{other}"] == expected[other]
    assert answers.token_ids[f"{name}.{index}"] == expected[index][:num_steps]
    wait_until_idle(service)


def test_abort_while_the_prompt_is_computed_in_chunks_leaves_the_others_going(make_service):
    service = make_service(max_num_batched_tokens=4, enable_prefix_caching=False)
    expected = run(service, prompt="a prompt of many tokens")
    service.pause()
    answers = Answers()
    name = service.submit("a prompt of many tokens", EIGHT, answers)
    step_by_hand(service, 2)
    assert not answers.token_ids
    service.abort(f"{name}.1")
    service.resume()

    assert answers.wait_for_ends() == {name: "length", f"{name}.1": "abort", f"{name}.2": "length"}
    assert [answers.token_ids[name], answers.token_ids[f"{name}.2"]] == [expected[0], expected[2]]


# ------------------------------------------------------------------------------------- listeners and streams


def test_listener_that_raises_loses_its_answers_and_nothing_else(make_service):
    service = make_service()
    expected = run(service)

    def broken(event):
        raise RuntimeError("a broken listener")

    service.submit("hello", ENDLESS, broken)
    assert run(service) == expected
    wait_until_idle(service)


def test_listener_that_raises_for_one_answer_loses_only_that_one(make_service):
    service = make_service()
    expected = run(service)
    answers = Answers(2)

    def picky(event):
        if event.index == 1:
            raise RuntimeError("not this one")
        answers(event)

    service.submit("hello", EIGHT, picky)

    assert answers.wait_for_ends() == {"r2": "length", "r2.2": "length"}
    assert [answers.token_ids["r2"], answers.token_ids["r2.2"]] == [expected[0], expected[2]]
    wait_until_idle(service)


def test_stream_of_three_answers_ends_after_the_third(make_service):
    service = make_service()

    async def collect():
        return [event async for event in service.stream("hello", EIGHT)]

    events = asyncio.run(collect())

    assert sorted(e.request_id for e in events if isinstance(e, RequestFinished)) == ["r1", "r1.1", "r1.2"]
    assert sum(isinstance(event, TokenEvent) for event in events) == 24
    assert isinstance(events[-1], RequestFinished)


def test_trap_27_leaving_a_stream_aborts_every_answer(make_service):
    service = make_service()

    async def take_until_one_ended():
        async with service.stream("hello", ENDLESS) as stream:
            service.abort("r1.1")
            async for event in stream:
                if isinstance(event, RequestFinished):
                    return event
        raise AssertionError("no answer ended")

    assert asyncio.run(take_until_one_ended()).request_id == "r1.1"
    wait_until_idle(service)


# ------------------------------------------------------------------------------------- swapping


SWAPPING = {"num_blocks": 6, "block_size": 8, "preemption_mode": "swap", "swap_space": 0.001}
PROMPTS = ("first " * 3, "second " * 2, "third " * 2)


def greedy(count: int = 16) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


def break_at(service: EngineService, kind: TransferKind, *, is_half_done: bool) -> list[str]:
    """Let the first step raise that moves such blocks, before or after they moved. Returns whose they are, later."""
    moved: list[str] = []

    def install(core):
        execute, transfer = core.runner.execute, core.runner._transfer

        def broken(plan, drafter):
            found = [each.request_id for each in plan.transfers if each.kind is kind]
            if found and not moved:
                moved.extend(found)
                if is_half_done:
                    transfer(plan.transfers[:1])
                raise ZeroDivisionError("a broken copy")
            return execute(plan, drafter)

        core.runner.execute = broken

    service._call(install)
    return moved


def test_status_tells_the_size_of_the_swap_space(make_service):
    swapping = make_service(**SWAPPING).status
    assert swapping.num_swap_blocks == int(0.001 * 2**30) // swapping.block_bytes > 0
    assert make_service().status.num_swap_blocks == 0


@pytest.mark.parametrize("is_half_done", [False, True])
@pytest.mark.parametrize("kind", [TransferKind.SWAP_OUT, TransferKind.SWAP_IN])
def test_step_that_fails_while_a_context_is_swapped_loses_only_what_was_in_flight(make_service, kind, is_half_done):
    service = make_service(**SWAPPING, enable_prefix_caching=False)
    expected = [run(service, greedy(), prompt)[0] for prompt in PROMPTS]
    moved = break_at(service, kind, is_half_done=is_half_done)
    service.pause()
    answers = Answers(3)
    names = [service.submit(prompt, greedy(), answers) for prompt in PROMPTS]
    service.resume()
    ends = answers.wait_for_ends()

    assert moved, "nothing was swapped, so this shows nothing"
    failed = {name for name, reason in ends.items() if reason == "error"}
    assert failed and set(ends.values()) == {"error", "length"}
    # What was to be brought back was part of the step; what was to be kept was not, and is computed again.
    assert (moved[0] in failed) == (kind is TransferKind.SWAP_IN)
    for name, tokens in zip(names, expected, strict=True):
        assert answers.token_ids[name] == tokens[: len(answers.token_ids[name])]
        assert name in failed or answers.token_ids[name] == tokens
    wait_until_idle(service)
    assert [run(service, greedy(), prompt)[0] for prompt in PROMPTS] == expected
