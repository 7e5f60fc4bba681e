"""What step records tell of drafting."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.ui.scripted_service import ScriptedService, request_state
from workbench.ui.comparison_markup import total_facts, total_rows
from workbench.ui.draft_steps import steps_of, totals_of


def recorded(*steps: list[Any]) -> list[Any]:
    service = ScriptedService()
    for states in steps:
        service.record(*states)
    timed = (
        msgspec.structs.replace(record, started_s=float(place), draft_s=0.25, execute_s=0.5)
        for place, record in enumerate(service.recorder.since(-1))
    )
    return list(timed)


def state(name: str, drafted: int, accepted: int, new: int | None = None) -> Any:
    return request_state(
        name,
        num_new_tokens=accepted + 1 if new is None else new,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        num_scheduled_tokens=drafted + 1,
        is_prefill=False,
    )


def test_steps_of_an_answer_are_those_that_brought_it_tokens():
    records = recorded(
        [state("r1", 0, 0, new=0)], [state("r1", 3, 1), state("r2", 2, 2)], [state("r2", 0, 0)], [state("r1", 0, 0)]
    )
    steps = steps_of(records, "r1")
    assert [(each.num_new_tokens, each.num_draft_tokens, each.num_others) for each in steps] == [(2, 3, 1), (1, 0, 0)]
    assert (steps[0].draft_s, steps[0].execute_s, steps[0].ended_s) == (0.25, 0.5, 1.75)


def test_totals_count_every_draft_once_and_by_request():
    totals = totals_of(recorded([state("r1", 4, 1), state("r2", 2, 2)], [state("r1", 0, 0)], [state("r1", 2, 0)]))
    assert (totals.first_step, totals.last_step) == (1, 3)
    assert (totals.overall.num_draft_tokens, totals.overall.num_accepted_tokens) == (8, 3)
    assert (totals.draft_s, totals.verify_s) == (0.75, 1.0)
    assert total_rows(totals) == [
        ["r2", "1", "2", "2", "0", "1.00", "3.00"],
        ["r1", "2", "6", "1", "5", "0.17", "1.50"],
    ]
    assert [(each.ended_s, each.num_draft_tokens) for each in totals.buckets] == [(-1.95, 6), (0.0, 2)]
    assert "recorded steps 1 to 3" in total_facts(totals)


def test_totals_without_a_draft_say_how_to_get_one():
    assert (totals_of([]).first_step, totals_of([]).buckets) == (-1, ())
    assert "No draft is recorded yet" in total_facts(totals_of(recorded([state("r1", 0, 0)])))
