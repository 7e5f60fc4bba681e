import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.speculation.adaptive import LEAST_PACE, Acceptance, DraftCost, StepCost, choose_counts
from workbench.speculation.statistics import expected_tokens

FLAT = StepCost({1: 1.0, 8: 1.2, 16: 2.0, 32: 4.0})
"""A pass costs much the same up to eight rows, and in proportion to them from sixteen on."""


def choose(acceptances, limits, num_rows, draft_s=lambda _count: 0.0, least_pace=LEAST_PACE):
    return choose_counts(acceptances, limits, num_rows, FLAT.seconds, draft_s, least_pace)


def test_one_request_drafts_while_rows_are_almost_free():
    assert choose([0.8], [16], 1) == [7]


def test_nothing_is_drafted_where_each_row_costs_as_much_as_a_token():
    assert choose([0.8] * 32, [4] * 32, 32) == [0] * 32


def test_nothing_is_drafted_where_acceptance_is_poor():
    assert choose([0.02], [16], 1) == [0]


def test_costly_drafting_makes_drafts_shorter():
    cheap, costly = choose([0.7], [16], 1), choose([0.7], [16], 1, lambda count: 0.2 * count)
    assert costly < cheap
    assert choose([0.7], [16], 1, lambda count: 0.9 * count) == [0]


def test_who_is_foretold_well_drafts_more_than_who_is_not():
    assert choose([0.9, 0.2], [16, 16], 2, least_pace=0) == [6, 0]


def test_nobody_waits_for_long_while_others_draft():
    """Without the bound one request of eight drafts until a step takes twice as long; the others get less then."""

    def step_s(rows):
        return 1.0 + 0.1 * (rows - 8)

    alone = choose_counts([0.97] + [0.0] * 7, [16] + [0] * 7, 8, step_s, lambda count: 0.0, least_pace=0.0)
    bound = choose_counts([0.97] + [0.0] * 7, [16] + [0] * 7, 8, step_s, lambda count: 0.0, least_pace=0.8)
    assert step_s(8 + sum(alone)) > 1.0 / 0.8 >= step_s(8 + sum(bound)) > 1.0
    # who drafts does not wait for others: a request alone, and requests that all draft alike
    assert choose_counts([0.97], [16], 1, step_s, lambda count: 0.05 * count, least_pace=0.8)[0] > 0
    assert all(choose_counts([0.97] * 8, [4] * 8, 8, step_s, lambda count: 0.0, least_pace=0.8))


def test_requests_that_do_not_draft_at_all_wait_no_longer_than_others():
    """Two rows of the step are nobody's who could draft."""

    def step_s(rows):
        return 1.0 if rows <= 3 else 1.2

    assert choose_counts([0.9], [1], 3, step_s, lambda count: 0.0, least_pace=0.0) == [1]
    assert choose_counts([0.9], [1], 3, step_s, lambda count: 0.0, least_pace=0.9) == [0]
    assert choose_counts([0.9], [1], 3, step_s, lambda count: 0.0, least_pace=0.8) == [1]


def test_limits_hold():
    assert choose([0.9, 0.9], [3, 0], 2) == [3, 0]


@given(
    st.lists(st.tuples(st.floats(0.0, 0.99), st.integers(0, 3)), min_size=1, max_size=3),
    st.floats(0.001, 0.5),
    st.lists(st.floats(0.01, 0.5), min_size=12, max_size=12),
)
def test_choice_expects_as_much_as_the_best_of_all_combinations(requests, per_token, increments):
    acceptances, limits = [a for a, _ in requests], [limit for _, limit in requests]
    costs = list(itertools.accumulate(increments, initial=1.0))

    def rate(counts):
        drafting = per_token * max(counts) if any(counts) else 0.0
        expected = sum(expected_tokens(a, count) for a, count in zip(acceptances, counts, strict=True))
        return expected / (costs[len(counts) + sum(counts)] + drafting)

    found = choose_counts(acceptances, limits, len(requests), costs.__getitem__, lambda count: per_token * count, 0.0)
    best = max(itertools.product(*(range(limit + 1) for limit in limits)), key=rate)
    assert rate(found) == pytest.approx(rate(best))


def test_acceptance_follows_what_was_seen_and_starts_from_the_prior():
    acceptance = Acceptance()
    assert acceptance.estimate(0.7) == pytest.approx(0.7)
    for _ in range(200):
        acceptance.observe(4, 1)
    assert acceptance.estimate(0.7) == pytest.approx(0.5, abs=0.03)
    for _ in range(200):
        acceptance.observe(4, 4)
    assert acceptance.estimate(0.7) > 0.97


def test_acceptance_that_is_never_tried_returns_to_the_prior():
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.observe(4, 0)
    assert acceptance.estimate(0.7) < 0.1
    for _ in range(2000):
        acceptance.idle()
    assert acceptance.estimate(0.7) > 0.65


def test_step_cost_lies_between_what_was_measured_and_grows_beyond_it():
    assert [FLAT.seconds(rows) for rows in (1, 8, 12, 32, 64)] == pytest.approx([1.0, 1.2, 1.6, 4.0, 8.0])
    assert StepCost({4: 2.0}).seconds(1) == 2.0


def test_step_cost_learns_that_the_machine_is_busy():
    cost = StepCost({1: 1.0, 8: 1.2})
    for _ in range(200):
        cost.observe(8, 2.4)
    assert cost.seconds(1) == pytest.approx(2.0, rel=0.01)


def test_step_cost_is_hardly_moved_by_one_stall():
    cost = StepCost({1: 1.0})
    cost.observe(1, 1000.0)
    assert cost.seconds(1) < 1.1


def test_draft_cost_is_nothing_before_it_is_known():
    cost = DraftCost()
    assert cost.seconds(4) == 0.0
    cost.observe(4, 0.4)
    assert cost.seconds(2) == pytest.approx(0.2)
