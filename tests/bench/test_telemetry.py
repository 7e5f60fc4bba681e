"""The telemetry benchmark: switching every 100 steps, which steps count, and its figures."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from tests.server.fake_service import FakeService
from workbench.bench.past_frames import past_frame_figures
from workbench.bench.telemetry import SEGMENT_STEPS, SETTLING_STEPS, WARM_UP_STEPS, Segment, Turns, overhead_figures
from workbench.engine.service import EngineService
from workbench.ui import explain


class SwitchedService(FakeService):
    """Notes when the recorder was switched."""

    def __init__(self) -> None:
        super().__init__()
        self.switched: list[tuple[int, bool]] = []
        self.recorder.switch = lambda on: self.switched.append((self.engine.step_id, on))  # type: ignore[attr-defined]


def run_steps(service: FakeService, turns: Turns, num_steps: int, **changes: Any) -> None:
    for _ in range(num_steps):
        turns._on_step(msgspec.structs.replace(service.step(), num_prefill_tokens=0, num_decode_tokens=4, **changes))


def test_turns_switch_every_hundred_steps_and_time_those_after_the_first_few():
    service = SwitchedService()
    turns = Turns(cast(EngineService, service), num_segments=4)
    run_steps(service, turns, WARM_UP_STEPS + 4 * SEGMENT_STEPS)
    first = WARM_UP_STEPS - 1
    assert service.switched == [
        (first, True),
        (first + 100, False),
        (first + 200, True),
        (first + 300, False),
    ]
    assert turns._is_done.is_set()
    assert [segment.is_watched for segment in turns.segments] == [True, False, True, False]
    for segment in turns.segments:
        assert len(segment.seconds) == SEGMENT_STEPS - SETTLING_STEPS
        assert segment.tok_per_s == pytest.approx(4 / 0.05)


def test_turns_leave_out_steps_that_prefill():
    service = SwitchedService()
    turns = Turns(cast(EngineService, service), num_segments=2)
    run_steps(service, turns, WARM_UP_STEPS + 50)
    turns._on_step(msgspec.structs.replace(service.step(), num_prefill_tokens=30))
    run_steps(service, turns, 10)
    assert len(turns.segments[0].seconds) == 50 + 1 + 10 - SETTLING_STEPS - 1


def segment(is_watched: bool, tok_per_s: float) -> Segment:
    return Segment(is_watched, seconds=[0.5, 0.5], tokens=[int(tok_per_s / 2), int(tok_per_s / 2)])


def test_figures_compare_neighbouring_segments():
    speeds = [(98, 100), (90, 100), (104, 100)]
    segments = [segment(index == 0, pair[index]) for pair in speeds for index in (0, 1)]
    figures = overhead_figures(segments)
    assert figures["overhead_fraction"] == pytest.approx(0.02)
    assert figures["overhead_fraction_min"] == pytest.approx(-0.04)
    assert figures["overhead_fraction_max"] == pytest.approx(0.1)
    assert (figures["watched_tok_per_s"], figures["alone_tok_per_s"], figures["num_pairs"]) == (98, 100, 3)


def test_past_frames_are_rebuilt_and_timed():
    figures = past_frame_figures(explain, num_steps=100)
    assert set(figures) == {"fold_step_us", "past_frame_p50_ms", "past_frame_p95_ms", "past_frame_max_ms"}
    assert 0 < figures["past_frame_p50_ms"] <= figures["past_frame_p95_ms"]
