import pytest

from workbench.speculation.statistics import AcceptanceStatistics, expected_tokens, predicted_speedup


def test_statistics_count_drafts_by_what_became_of_them():
    statistics = AcceptanceStatistics.of([(4, 4), (4, 1), (4, 0), (0, 0), (2, 2), (4, 1)])
    assert (statistics.num_drafts, statistics.num_draft_tokens, statistics.num_accepted_tokens) == (5, 18, 8)
    assert statistics.num_wasted_tokens == 10
    assert statistics.accepted_lengths == [1, 2, 1, 0, 1]
    assert statistics.acceptance == 8 / 18
    assert statistics.mean_acceptance_length == 1 + 8 / 5


def test_acceptance_by_position_counts_only_drafts_that_came_so_far():
    statistics = AcceptanceStatistics.of([(4, 4), (4, 1), (4, 0), (2, 2), (4, 1)])
    assert statistics.acceptance_by_position == [4 / 5, 2 / 4, 1 / 1, 1 / 1]


def test_statistics_of_nothing_are_none():
    statistics = AcceptanceStatistics()
    assert statistics.acceptance is None and statistics.mean_acceptance_length is None
    assert statistics.acceptance_by_position == []


@pytest.mark.parametrize(("acceptance", "count", "tokens"), [(0.5, 1, 1.5), (0.8, 4, 3.3616), (0, 5, 1), (1, 3, 4)])
def test_expected_tokens_follow_the_formula(acceptance, count, tokens):
    assert expected_tokens(acceptance, count) == pytest.approx(tokens)


def test_predicted_speedup_follows_the_formula():
    assert predicted_speedup(0.8, 4, 0.05, 1.2) == pytest.approx((1 - 0.8**5) / (0.2 * (0.05 * 4 + 1.2)))
    assert predicted_speedup(0.5, 0, 0.3, 1.0) == 1.0
