"""The background button's requests are real, bounded, and always the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ui.scripted_service import ScriptedService
from workbench.errors import PromptTooLongError, QueueFullError
from workbench.ui.background import MAX_UNFINISHED, BackgroundLoad, BackgroundShape, shape_of


def load_over(service: Any) -> BackgroundLoad:
    return BackgroundLoad(service)


def test_background_requests_have_varied_lengths_and_fixed_seeds():
    assert shape_of(0, 1000) == BackgroundShape(24, 160, 1000)
    assert shape_of(9, 1000) == BackgroundShape(120, 96, 1009)


def test_background_requests_never_exceed_a_third_of_the_context():
    assert shape_of(6, 60) == BackgroundShape(20, 20, 1006)


def test_background_load_submits_eight_requests_through_the_door():
    service = ScriptedService()
    load = load_over(service)
    assert load.add() == ("r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8")
    assert len(service.prompts["r2"]) == 120
    assert (service.params["r2"].seed, service.params["r2"].max_tokens) == (1001, 96)
    assert load.num_unfinished == 8


def test_background_load_counts_those_that_end():
    service = ScriptedService()
    load = load_over(service)
    load.add()
    service.token("r1", "x", 1)
    service.finish("r1")
    assert load.num_unfinished == 7


def test_background_load_is_refused_when_too_many_are_under_way():
    service = ScriptedService()
    load = load_over(service)
    for _ in range(MAX_UNFINISHED // 8):
        load.add()
    with pytest.raises(QueueFullError, match="64 background requests are still queued or running"):
        load.add()
    assert len(service.prompts) == MAX_UNFINISHED
    for index in range(1, 9):
        service.finish(f"r{index}")
    assert len(load.add()) == 8


def test_background_load_forgets_requests_that_the_engine_refused():
    service = ScriptedService()
    service.refusal = PromptTooLongError("too long")
    load = load_over(service)
    with pytest.raises(PromptTooLongError):
        load.add()
    assert load.num_unfinished == 0
