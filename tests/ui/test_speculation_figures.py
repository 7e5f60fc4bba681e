"""The charts of the Speculation tab hold the numbers that they were given."""

from __future__ import annotations

import pytest

from tests.ui.test_comparison import compared, side, step
from workbench.speculation.statistics import AcceptanceStatistics, predicted_speedup
from workbench.ui.comparison import StepCosts
from workbench.ui.draft_steps import Bucket, DraftTotals
from workbench.ui.figures.speculation import (
    MeasuredSpeedup,
    acceptance_by_position,
    acceptance_over_time,
    accepted_lengths,
    drafted_over_time,
    speedup_against_k,
    tokens_over_time,
)

STATISTICS = AcceptanceStatistics.of([(2, 2), (2, 1), (2, 0), (1, 0)])


def test_bars_give_acceptance_by_position_from_the_first_on():
    (bars,) = acceptance_by_position(STATISTICS).data
    assert (list(bars.x), list(bars.y)) == ([1, 2], [0.5, 0.5])
    assert list(bars.text) == ["0.50", "0.50"]


def test_bars_count_drafts_by_accepted_tokens():
    (bars,) = accepted_lengths(STATISTICS).data
    assert (list(bars.x), list(bars.y)) == ([0, 1, 2], [2, 1, 1])


def test_speedups_stand_beside_the_prediction():
    costs = StepCosts(acceptance=0.8, draft=0.1, verify=1.4, num_draft_tokens=4)
    measured = [MeasuredSpeedup("ngram", 4, False, 1.88), MeasuredSpeedup("ngram", 8, True, 1.5)]
    line, dots = speedup_against_k(measured, costs).data
    assert list(line.x) == list(range(17))
    assert line.y[0] == 1
    assert line.y[4] == pytest.approx(predicted_speedup(0.8, 4, 0.1, 1.4))
    assert (list(dots.x), list(dots.y)) == ([4, 8], [1.88, 1.5])
    assert list(dots.customdata) == ["ngram, K = 4", "ngram, adaptive K up to 8"]
    (alone,) = speedup_against_k(measured, None).data
    assert list(alone.y) == [1.88, 1.5]


def test_line_gives_the_tokens_drafted_for_each_step_after_the_first():
    (line,) = drafted_over_time(side("abcd", step(1, 1), step(2, 2, 4, 1), step(3, 1))).data
    assert (list(line.x), list(line.y)) == ([1, 2], [4, 0])


def test_lines_give_the_tokens_of_both_answers_over_time():
    plain = side("abc", step(1, 1), step(2, 1), step(4, 1))
    drafted = side("abc", step(10, 1), step(11, 2, 4, 1))
    first, second = tokens_over_time(compared(plain, drafted)).data
    assert (list(first.x), list(first.y)) == ([0, 1, 3], [1, 2, 3])
    assert (list(second.x), list(second.y)) == ([0, 1], [1, 3])


def test_line_gives_the_acceptance_of_all_requests_over_time():
    totals = DraftTotals(buckets=(Bucket(-4.0, 8, 2), Bucket(0.0, 10, 9)))
    (line,) = acceptance_over_time(totals).data
    assert (list(line.x), list(line.y)) == ([-4.0, 0.0], [0.25, 0.9])


def test_charts_of_nothing_are_empty_and_not_wrong():
    nothing = AcceptanceStatistics()
    for figure in (acceptance_by_position(nothing), accepted_lengths(nothing), drafted_over_time(side(""))):
        assert all(len(trace.x) == 0 for trace in figure.data)
