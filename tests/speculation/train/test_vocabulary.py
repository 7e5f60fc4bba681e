"""Which tokens a head can draft."""

from __future__ import annotations

from workbench.speculation.train.sequences import GeneratedSequence
from workbench.speculation.train.vocabulary import coverage, frequent_tokens


def text(prompt, answer):
    return GeneratedSequence((*prompt, *answer), len(prompt), 0, 0, 0.0)


TEXTS = [text((9, 9, 9, 9), (5, 5, 5, 2)), text((8,), (2, 7, 1, 5))]


def test_frequent_tokens_are_counted_in_answers_and_ties_go_to_lower_ids():
    assert frequent_tokens(TEXTS, 1, 10) == [5]
    assert frequent_tokens(TEXTS, 3, 10) == [1, 2, 5]
    assert frequent_tokens(TEXTS, 4, 10) == [1, 2, 5, 7]
    assert frequent_tokens(TEXTS, 6, 10) == [0, 1, 2, 3, 5, 7]
    assert frequent_tokens(TEXTS, 100, 10) == list(range(10))


def test_coverage_is_the_share_of_answered_tokens():
    assert coverage([5, 9], TEXTS) == 4 / 8
    assert coverage([], []) == 0
