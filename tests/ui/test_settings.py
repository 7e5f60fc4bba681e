"""What the sidebar holds, as sampling parameters and as changes of the engine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ui.scripted_service import ScriptedService, request_state
from workbench.config import EngineConfig
from workbench.errors import ConfigurationError
from workbench.telemetry.records import RequestStatus
from workbench.ui.settings import apply_changes, apply_note, engine_changes

MEMORY = ("recompute", 0.5, "paged", "first_fit")
"""Preemption, swap space, layout and placement as they are at first."""


def service() -> Any:
    return ScriptedService(EngineConfig(num_blocks=100, block_size=16, max_num_batched_tokens=512, max_num_seqs=64))


@pytest.mark.parametrize(
    ("wanted", "label"),
    [
        ((16, 100, 512, 64, True, "fcfs", "strict", *MEMORY), "Apply (no changes)"),
        ((16, None, 512, None, True, "fcfs", "strict", *MEMORY), "Apply (no changes)"),
        ((16, 100, 256, 64, True, "fcfs", "strict", *MEMORY), "Apply (1 change, live)"),
        ((16, 100, 256, 8, True, "fcfs", "strict", *MEMORY), "Apply (2 changes, live)"),
        ((16, 100, 512, 64, False, "fcfs", "strict", *MEMORY), "Apply (1 change, live)"),
        ((16, 100, 512, 64, True, "sjf", "best_fit", *MEMORY), "Apply (2 changes, reload)"),
        ((16, 100, 512, 64, True, "fcfs", "strict", "swap", 0.5, "paged", "first_fit"), "Apply (1 change, reload)"),
        ((16, 100, 512, 64, True, "fcfs", "strict", "auto", 0.25, "paged", "first_fit"), "Apply (2 changes, reload)"),
        (
            (16, 100, 512, 64, True, "fcfs", "strict", "recompute", None, "contiguous", "best_fit"),
            "Apply (2 changes, reload)",
        ),
        ((8, 100, 256, 64, False, "fcfs", "strict", *MEMORY), "Apply (3 changes, reload)"),
    ],
)
def test_changes_are_counted_and_told_live_from_reload(wanted: Any, label: str):
    assert engine_changes(service(), *wanted).button_label() == label


def test_apply_of_live_settings_does_not_reload():
    door = service()
    apply_changes(door, engine_changes(door, 16, 100, 256, 8, True, "fcfs", "strict", *MEMORY))
    assert (door.limits, door.reloads) == ([{"max_num_batched_tokens": 256, "max_num_seqs": 8}], [])


def test_apply_of_other_settings_reloads_with_all_of_them():
    door = service()
    apply_changes(door, engine_changes(door, 8, 200, 256, 64, True, "fcfs", "strict", *MEMORY))
    (config,) = door.reloads
    assert (config.block_size, config.num_blocks, config.max_num_batched_tokens) == (8, 200, 256)


def test_apply_of_memory_settings_reloads_with_a_fraction_of_a_gib_and_names():
    door = service()
    wanted = (16, 100, 512, 64, True, "fcfs", "strict", "auto", 0.25, "contiguous", "best_fit")
    apply_changes(door, engine_changes(door, *wanted))
    (config,) = door.reloads
    assert (config.preemption_mode, config.swap_space) == ("auto", 0.25)
    assert (config.kv_layout, config.kv_placement) == ("contiguous", "best_fit")


def test_apply_note_says_what_the_contiguous_layout_does_without():
    door = service()
    wanted = (16, 100, 512, 64, True, "fcfs", "strict", "recompute", 0.5, "contiguous", "first_fit")
    assert apply_note(door, engine_changes(door, *wanted)) == (
        "The engine reloads; no request is under way. "
        "In the contiguous layout the prefix cache and beam search are not active."
    )


def test_apply_of_a_wrong_value_is_refused_and_nothing_is_changed():
    door = service()
    with pytest.raises(ConfigurationError, match="num_blocks=-3"):
        apply_changes(door, engine_changes(door, 16, -3, 512, 64, True, "fcfs", "strict", *MEMORY))
    assert door.reloads == []


def test_apply_note_says_whom_a_reload_interrupts():
    door = service()
    door.record(request_state("r1"), request_state("r2", RequestStatus.WAITING))
    note = apply_note(door, engine_changes(door, 8, 100, 512, 64, True, "fcfs", "strict", *MEMORY))
    assert note.startswith("The engine reloads. 2 requests under way get 30 s to finish")


def test_apply_note_says_that_live_changes_interrupt_nobody():
    door = service()
    assert "nobody is interrupted" in apply_note(
        door, engine_changes(door, 16, 100, 256, 64, True, "fcfs", "strict", *MEMORY)
    )
    assert apply_note(door, engine_changes(door, 16, 100, 512, 64, True, "fcfs", "strict", *MEMORY)) == ""


def test_apply_note_gives_the_error_of_a_wrong_value_beforehand():
    door = service()
    assert "num_blocks=-3 must be" in apply_note(
        door, engine_changes(door, 16, -3, 512, 64, True, "fcfs", "strict", *MEMORY)
    )


def test_apply_note_gives_the_error_of_a_swap_space_of_nothing():
    door = service()
    wanted = (16, 100, 512, 64, True, "fcfs", "strict", "swap", 0, "paged", "first_fit")
    assert "swap_space=0.0 must be a number of GiB above 0" in apply_note(door, engine_changes(door, *wanted))
