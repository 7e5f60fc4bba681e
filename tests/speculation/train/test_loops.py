"""Answers that repeat themselves are noticed at once, others never."""

from __future__ import annotations

from workbench.speculation.train.loops import LoopGuard


def first_loop(token_ids) -> int | None:
    """How many tokens were taken when the guard noticed a loop."""
    guard = LoopGuard()
    return next((index + 1 for index, token_id in enumerate(token_ids) if guard.add(token_id)), None)


def test_guard_notices_one_token_over_and_over():
    assert first_loop([7] * 40) == 18


def test_guard_notices_a_sentence_when_it_comes_the_third_time():
    sentence = list(range(100, 120))

    # The third time it needs only as many tokens as a run has.
    assert first_loop(sentence * 4) == 56


def test_guard_notices_a_sentence_that_comes_again_after_other_words():
    sentence = list(range(16))

    assert first_loop([*sentence, 50, *sentence, 51, 52, *sentence]) == 51


def test_guard_lets_varied_text_and_two_repeats_pass():
    assert first_loop(range(500)) is None
    assert first_loop(list(range(60)) * 2) is None
    assert first_loop([1, 2, 3] * 6) is None
