from __future__ import annotations

from collections.abc import Sequence

import pytest

from workbench.bench.context import context_figures, measure, prompt_of
from workbench.bench.machine import Machine
from workbench.bench.timings import RequestTimes
from workbench.bench.workloads import WorkItem


def test_contexts_take_turns_around_the_named_length_after_one_warm_up():
    asked: list[tuple[int, int]] = []

    def run_items(items: Sequence[WorkItem]) -> list[RequestTimes]:
        (item,) = items
        asked.append((len(item.prompt_token_ids), item.max_tokens))
        gap_s = 0.25 if len(item.prompt_token_ids) < 1000 else 0.5
        return [RequestTimes(((1.0, 1), (1.0 + gap_s, 1), (1.0 + 2 * gap_s, 1)))]

    itls = measure(run_items, [5, 6, 7], rounds=2)

    assert asked == [(468, 64), (3968, 64)] * 3
    assert itls == {500: [0.25, 0.25], 4000: [0.5, 0.5]}


def test_prompt_repeats_the_text_to_the_length():
    assert prompt_of([1, 2, 3], 7) == (1, 2, 3, 1, 2, 3, 1)


def test_figures_take_the_reading_of_the_extra_keys_and_values_off():
    figures = context_figures({500: [0.010, 0.012, 0.011], 4000: [0.020, 0.022, 0.021]}, 20_000, Machine(1e10, 1e11))

    assert figures == pytest.approx(
        {
            "itl_500_ms": 11.0,
            "itl_4000_ms": 21.0,
            "kv_read_floor_ms": 7.0,
            "ratio": 21 / 11,
            "ratio_without_kv_read": 14 / 11,
            "bandwidth_gb_per_s": 10.0,
            "itl_500_ms_min": 10.0,
            "itl_500_ms_max": 12.0,
            "itl_4000_ms_min": 20.0,
            "itl_4000_ms_max": 22.0,
        }
    )
