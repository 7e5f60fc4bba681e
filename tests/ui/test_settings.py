"""What the sidebar holds, as sampling parameters and as changes of the engine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ui.scripted_service import ScriptedService, request_state
from workbench.config import EngineConfig
from workbench.errors import ConfigurationError
from workbench.telemetry.records import RequestStatus
from workbench.ui.settings import apply_changes, apply_note, engine_changes


def service() -> Any:
    return ScriptedService(EngineConfig(num_blocks=100, block_size=16, max_num_batched_tokens=512, max_num_seqs=64))


@pytest.mark.parametrize(
    ("wanted", "label"),
    [
        ((16, 100, 512, 64, True, "fcfs", "strict"), "Apply (no changes)"),
        ((16, None, 512, None, True, "fcfs", "strict"), "Apply (no changes)"),
        ((16, 100, 256, 64, True, "fcfs", "strict"), "Apply (1 change, live)"),
        ((16, 100, 256, 8, True, "fcfs", "strict"), "Apply (2 changes, live)"),
        ((16, 100, 512, 64, False, "fcfs", "strict"), "Apply (1 change, live)"),
        ((16, 100, 512, 64, True, "sjf", "best_fit"), "Apply (2 changes, reload)"),
        ((8, 100, 256, 64, False, "fcfs", "strict"), "Apply (3 changes, reload)"),
    ],
)
def test_changes_are_counted_and_told_live_from_reload(wanted: Any, label: str):
    assert engine_changes(service(), *wanted).button_label == label


def test_apply_of_live_settings_does_not_reload():
    door = service()
    apply_changes(door, engine_changes(door, 16, 100, 256, 8, True, "fcfs", "strict"))
    assert (door.limits, door.reloads) == ([{"max_num_batched_tokens": 256, "max_num_seqs": 8}], [])


def test_apply_of_other_settings_reloads_with_all_of_them():
    door = service()
    apply_changes(door, engine_changes(door, 8, 200, 256, 64, True, "fcfs", "strict"))
    (config,) = door.reloads
    assert (config.block_size, config.num_blocks, config.max_num_batched_tokens) == (8, 200, 256)


def test_apply_of_a_wrong_value_is_refused_and_nothing_is_changed():
    door = service()
    with pytest.raises(ConfigurationError, match="num_blocks=-3"):
        apply_changes(door, engine_changes(door, 16, -3, 512, 64, True, "fcfs", "strict"))
    assert door.reloads == []


def test_apply_note_says_whom_a_reload_interrupts():
    door = service()
    door.record(request_state("r1"), request_state("r2", RequestStatus.WAITING))
    note = apply_note(door, engine_changes(door, 8, 100, 512, 64, True, "fcfs", "strict"))
    assert note.startswith("The engine reloads. 2 requests under way get 30 s to finish")


def test_apply_note_says_that_live_changes_interrupt_nobody():
    door = service()
    assert "nobody is interrupted" in apply_note(door, engine_changes(door, 16, 100, 256, 64, True, "fcfs", "strict"))
    assert apply_note(door, engine_changes(door, 16, 100, 512, 64, True, "fcfs", "strict")) == ""


def test_apply_note_gives_the_error_of_a_wrong_value_beforehand():
    door = service()
    assert "num_blocks=-3 must be" in apply_note(door, engine_changes(door, 16, -3, 512, 64, True, "fcfs", "strict"))
