"""Which requests a view names, in which order, and which decision about them it can tell."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.telemetry.simulated_engine import SimulatedEngine
from workbench.telemetry.live_requests import MAX_NAMED_WAITING, RECENT_S, LiveRequests
from workbench.telemetry.records import Decision, Explanation, Reason, RequestState, RequestStatus, StepRecord

STEP = SimulatedEngine().step()


def state(name: str, status: RequestStatus = RequestStatus.WAITING, **values: Any) -> RequestState:
    known: dict[str, Any] = {"num_prompt_tokens": 9, "num_output_tokens": 0, "num_computed_tokens": 0, "num_blocks": 0}
    step = {"num_scheduled_tokens": 0, "num_new_tokens": 0, "is_prefill": False, "num_preemptions": 0}
    return RequestState(request_id=name, status=status, arrival_time_s=0.0, **(known | step | values))


def deferred(name: str, free: int) -> Explanation:
    return Explanation(name, Decision.DEFERRED, Reason.NO_FREE_BLOCKS, {"needed_blocks": 9, "free_blocks": free})


def preempted(name: str) -> Explanation:
    return Explanation(name, Decision.PREEMPTED, Reason.NO_FREE_BLOCKS, {"needed_blocks": 1, "free_blocks": 0}, "r1")


def record(step_id: int, *states: RequestState, told: tuple[Explanation, ...] = (), at_s: float = 0.0) -> StepRecord:
    return msgspec.structs.replace(
        STEP, step_id=step_id, started_s=at_s, requests=tuple(states), explanations=told, block_changes=()
    )


def test_waiting_request_keeps_its_decision_until_another_one() -> None:
    requests = LiveRequests()
    requests.apply(record(3, state("r2"), told=(deferred("r2", 4),)), 1)
    requests.apply(record(4, state("r2")), 2)
    waiting = requests.by_id["r2"]
    assert waiting.decision is not None
    assert (waiting.decision.explanation, waiting.decision.since_step) == (deferred("r2", 4), 3)
    assert waiting.version == 1
    requests.apply(record(5, state("r2"), told=(deferred("r2", 6),)), 3)
    assert (waiting.decision.explanation, waiting.decision.since_step) == (deferred("r2", 6), 3)
    assert waiting.version == 3
    behind = Explanation("r2", Decision.DEFERRED, Reason.BEHIND_HEAD, {"position": 1})
    requests.apply(record(6, state("r2"), told=(behind,)), 4)
    assert (waiting.decision.explanation, waiting.decision.since_step) == (behind, 6)


def test_preempted_request_tells_who_took_its_blocks_and_what_holds_it_now() -> None:
    requests = LiveRequests()
    requests.apply(record(1, state("r2", RequestStatus.RUNNING)), 1)
    away = state("r2", RequestStatus.SWAPPED, num_swapped_blocks=4)
    requests.apply(record(2, away, told=(preempted("r2"), deferred("r2", 0))), 2)
    held = requests.by_id["r2"]
    assert held.decision is not None
    assert held.preemption is not None
    assert held.decision.explanation == deferred("r2", 0)
    assert (held.preemption.explanation, held.preemption.since_step) == (preempted("r2"), 2)


def test_running_request_tells_its_decisions_only_for_a_while_after_a_preemption() -> None:
    requests = LiveRequests()
    room = Explanation("r2", Decision.ADMITTED, Reason.ROOM, {})
    requests.apply(record(1, state("r2", RequestStatus.RUNNING), told=(room,)), 1)
    assert requests.by_id["r2"].decision is None
    requests.apply(record(2, state("r2", RequestStatus.PREEMPTED), told=(preempted("r2"),), at_s=10.0), 2)
    resumed = Explanation("r2", Decision.RESUMED, Reason.ROOM, {})
    requests.apply(record(3, state("r2", RequestStatus.RUNNING), told=(resumed,), at_s=10.0 + RECENT_S - 0.1), 3)
    request = requests.by_id["r2"]
    assert request.decision is not None
    assert request.decision.explanation == resumed
    requests.apply(record(4, state("r2", RequestStatus.RUNNING), at_s=10.0 + RECENT_S + 0.1), 4)
    assert not any((request.decision, request.preemption))
    assert request.version == 4


def test_only_the_first_of_the_queue_are_named_and_in_its_order() -> None:
    requests = LiveRequests()
    queue = [state(f"r{i}") for i in range(MAX_NAMED_WAITING + 2)]
    requests.apply(record(1, *queue), 1)
    assert [request.state.request_id for request in requests.named] == [f"r{i}" for i in range(MAX_NAMED_WAITING)]
    requests.apply(record(2, *reversed(queue)), 2)
    named = requests.named
    assert [request.state.request_id for request in named][:2] == ["r65", "r64"]
    assert [request.version for request in named] == [2, 2] + [1] * (MAX_NAMED_WAITING - 2)
    assert len(requests.by_id) == MAX_NAMED_WAITING + 2


def test_a_request_that_is_named_again_counts_as_changed() -> None:
    requests = LiveRequests()
    queue = [state(f"r{i}") for i in range(MAX_NAMED_WAITING + 1)]
    requests.apply(record(1, *queue), 1)
    requests.apply(record(2, *reversed(queue)), 2)
    requests.apply(record(3, *queue), 3)
    versions = [request.version for request in requests.named]
    assert (versions[0], set(versions[1:])) == (3, {1})


@pytest.mark.parametrize("status", [RequestStatus.FINISHED, RequestStatus.ABORTED, RequestStatus.FAILED])
def test_ended_request_is_named_no_more(status: RequestStatus) -> None:
    requests = LiveRequests()
    requests.apply(record(1, state("r1", RequestStatus.RUNNING), state("r2")), 1)
    requests.apply(record(2, state("r1", status), state("r2")), 2)
    assert [request.state.request_id for request in requests.named] == ["r2"]
    assert set(requests.by_id) == {"r2"}
