"""Where a request stands and what holds it, as the engine recorded it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ui.scripted_service import ScriptedService, request_state
from workbench.telemetry.records import Decision, Explanation, Reason, RequestStatus
from workbench.ui.phases import Phase, PhaseKind, RequestWatch, belongs_to, find_phase


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
        (request_state("r1", RequestStatus.SWAPPED), "preempted"),
    ],
)
def test_phase_words_follow_the_engines_record(state: Any, words: str):
    service = ScriptedService()
    service.record(state)
    assert find_phase(service.recorder.latest, "r1")[0].words == words


def test_phase_is_queued_before_the_engine_has_heard_of_the_request():
    assert find_phase(None, "r1") == (Phase(PhaseKind.QUEUED), None)


@pytest.mark.parametrize(
    ("name", "belongs"),
    [("r5", True), ("r5.1", True), ("r5.12", True), ("r51", False), ("r51.1", False), ("r4", False)],
)
def test_names_of_answers_belong_to_their_request(name: str, belongs: bool):
    assert belongs_to(name, "r5") is belongs


# ------------------------------------------------------------------------------ what holds it

WAITING, PREEMPTED, SWAPPED = RequestStatus.WAITING, RequestStatus.PREEMPTED, RequestStatus.SWAPPED


def deferred(name: str, needed: int, free: int) -> Explanation:
    numbers = {"needed_blocks": needed, "free_blocks": free}
    return Explanation(name, Decision.DEFERRED, Reason.NO_FREE_BLOCKS, numbers)


def preempted(name: str, **numbers: int) -> Explanation:
    numbers = {"needed_blocks": 3, "free_blocks": 1, **numbers}
    return Explanation(name, Decision.PREEMPTED, Reason.NO_FREE_BLOCKS, numbers, "r9")


def watch(service: ScriptedService, request_id: str = "r1") -> RequestWatch:
    return RequestWatch(service.recorder, request_id)


def why(watched: RequestWatch, name: str = "r1") -> tuple[str, ...]:
    watched.read()
    return watched.phase(name)[0].why


def test_waiting_request_tells_the_newest_rule_that_holds_it():
    service = ScriptedService()
    watched = watch(service)
    service.record(request_state("r1", WAITING), explanations=(deferred("r1", 12, 7), deferred("r11", 1, 0)))
    assert why(watched) == ("waiting: needs 12 blocks, 7 are free",)
    service.record(request_state("r1", WAITING), explanations=(deferred("r1", 12, 9),))
    assert why(watched) == ("waiting: needs 12 blocks, 9 are free",)
    service.record(request_state("r1", WAITING))  # explained no more, since nothing has changed
    assert why(watched) == ("waiting: needs 12 blocks, 9 are free",)
    service.record(request_state("r1"))
    service.record(request_state("r1", PREEMPTED))
    assert why(watched) == ()


def test_preempted_request_tells_who_needed_its_blocks_and_what_it_waits_for_now():
    service = ScriptedService()
    watched = watch(service)
    service.record(request_state("r1", PREEMPTED), explanations=(preempted("r1"),))
    service.record(request_state("r1", PREEMPTED), explanations=(deferred("r1", 12, 9),))
    service.record(request_state("r1", PREEMPTED), explanations=(deferred("r1", 12, 10),))
    assert why(watched) == (
        "preempted: r9 needed 3 blocks, 1 was free; computed again later",
        "waiting: needs 12 blocks, 10 are free",
    )
    service.record(request_state("r1"))
    assert why(watched) == ()
    service.record(request_state("r1", SWAPPED), explanations=(preempted("r1", swapped_blocks=14),))
    assert why(watched) == ("preempted: r9 needed 3 blocks, 1 was free; kept in host memory (14 blocks)",)
    assert watched.num_swaps == {"r1": 1}


def test_answers_of_a_request_are_held_each_by_itself():
    service = ScriptedService()
    watched = watch(service)
    service.record(
        request_state("r1", num_output_tokens=5, is_prefill=False),
        request_state("r1.1", PREEMPTED),
        explanations=(preempted("r1.1"),),
    )
    assert why(watched, "r1") == ()
    assert watched.phase("r1")[0].words == "decode 5"
    assert len(why(watched, "r1.1")) == 1


def test_watch_leaves_out_what_was_recorded_before_its_request():
    service = ScriptedService()
    service.record(request_state("r1", WAITING), explanations=(deferred("r1", 12, 7),))
    watched = watch(service)
    assert why(watched) == ()
    assert watched.admitted is None


def test_watch_goes_on_with_a_reloaded_engine_whose_steps_count_from_one_again():
    service = ScriptedService()
    for _ in range(5):
        service.record()
    watched = watch(service)
    service.record(request_state("r1"), epoch=1)
    watched.read()
    assert watched.phase("r1")[0].kind is PhaseKind.PREFILL
    assert watched.admitted is not None


def test_watch_remembers_the_request_as_it_was_first_admitted():
    service = ScriptedService()
    watched = watch(service)
    service.record(request_state("r1", WAITING))
    service.record(request_state("r1", num_cached_tokens=32))
    service.record(request_state("r1", num_cached_tokens=48))
    watched.read()
    assert watched.admitted is not None
    assert watched.admitted.num_cached_tokens == 32
