"""The header's acceptance counts the drafts of the last seconds, and depends on nothing but the steps before."""

from __future__ import annotations

import msgspec

from tests.telemetry.simulated_engine import SimulatedEngine
from workbench.telemetry.live_drafts import LiveDrafts
from workbench.telemetry.live_state import LiveState
from workbench.telemetry.records import StepRecord
from workbench.telemetry.saved_state import restore_state, save_state


def drafted(number: int, ended_s: float, *drafts: tuple[int, int]) -> StepRecord:
    """A step that ended at a time, with (drafted, accepted) tokens of its requests."""
    engine = SimulatedEngine(num_blocks=8)
    engine.add(20, 5)
    record = engine.step()
    states = tuple(
        msgspec.structs.replace(record.requests[0], num_draft_tokens=count, num_accepted_tokens=accepted)
        for count, accepted in drafts
    )
    return msgspec.structs.replace(
        record,
        step_id=number,
        started_s=ended_s,
        draft_s=0.0,
        schedule_s=0.0,
        execute_s=0.0,
        update_s=0.0,
        requests=states,
        block_changes=(),
        transfers=(),
    )


def test_drafts_of_the_last_five_seconds_are_counted() -> None:
    drafts = LiveDrafts()
    drafts.apply(drafted(0, 10.0, (4, 1)))
    drafts.apply(drafted(1, 12.0, (4, 4), (3, 0)))
    drafts.apply(drafted(2, 13.0, (0, 0)))
    assert drafts.at(13.0) == (11, 5)
    assert drafts.at(15.5) == (7, 4)
    assert drafts.at(17.5) == (0, 0)
    assert drafts.at(13.0) == (11, 5)  # looking changes nothing


def test_figures_tell_the_drafts_and_a_restored_state_tells_the_same() -> None:
    state = LiveState()
    state.reset(1, 8, 16)
    assert (state.figures(0.0).num_draft_tokens, state.figures(0.0).num_accepted_tokens) == (0, 0)
    state.apply(drafted(0, 10.0, (4, 3)))
    figures = state.copy().figures(11.0)
    assert (figures.num_draft_tokens, figures.num_accepted_tokens) == (4, 3)
    assert restore_state(save_state(state), 1, 16).drafts.at(11.0) == (4, 3)
    state.reset(2, 8, 16)
    assert state.drafts.at(11.0) == (0, 0)
