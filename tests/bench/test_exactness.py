"""The rule of comparison itself, on made-up answers. The engine's own answers: tests/test_exactness.py."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.bench.exactness import ALL_SETTINGS, Comparison, Setting, _report, compare
from workbench.bench.golden import Golden, GoldenCase, load_golden, save_golden
from workbench.bench.reference import ReferenceAnswer

CASE = GoldenCase("p", (1, 2), ReferenceAnswer((10, 11, 12, 13), {1: (21,), 2: (22,)}))


def outcome(answer: Sequence[int], continuations: dict[tuple[int, ...], list[int]] | None = None) -> Comparison:
    comparison = Comparison()
    known = continuations or {}
    compare(CASE, answer, lambda context, num_tokens: known[tuple(context)][:num_tokens], comparison)
    return comparison


def test_equal_answers_match_at_every_position():
    assert outcome([10, 11, 12, 13]) == Comparison(num_positions=4)


def test_wrong_token_is_a_mismatch_and_ends_the_comparison():
    assert outcome([10, 11, 99, 98]) == Comparison(num_positions=3, mismatches=["p@2: 99 instead of 12"])


def test_short_answer_is_a_mismatch():
    assert outcome([10, 11, 12]).mismatches == ["p@3: None instead of 13"]


def test_other_token_of_a_tie_is_accepted_and_the_rest_continues_on_the_reference():
    result = outcome([10, 21, 50, 51], {(1, 2, 10, 11): [12, 13]})

    assert result == Comparison(num_positions=4, ties=["p@1"])


def test_mismatch_after_a_tie_is_still_noticed():
    result = outcome([10, 21, 50, 51], {(1, 2, 10, 11): [12, 99]})

    assert (result.ties, result.mismatches) == (["p@1"], ["p@3: 99 instead of 13"])


def test_token_tied_at_another_position_is_a_mismatch():
    assert outcome([10, 22, 12, 13]).mismatches == ["p@1: 22 instead of 11"]


def test_full_product_has_36_settings_and_small_pools_only_in_batches():
    assert len(ALL_SETTINGS) == 36
    assert len({str(setting) for setting in ALL_SETTINGS}) == 36
    assert sum(setting.has_small_pool for setting in ALL_SETTINGS) == 12


def test_small_pool_holds_the_longest_request_and_two_blocks_more():
    setting = Setting(True, 8, 16, has_small_pool=True, has_prefix_cache=False)
    long_case = GoldenCase("q", tuple(range(20)), CASE.answer)

    assert setting.engine_fields([CASE, long_case])["num_blocks"] == 5


def test_report_fails_when_ties_exceed_one_percent_or_a_small_pool_never_preempted():
    golden = Golden("0" * 64, {"transformers": "5", "torch": "2"}, (CASE,))
    within = {"a": Comparison(num_positions=100, ties=["p@1"])}
    beyond = {"a": Comparison(num_positions=100, ties=["p@1", "p@2"])}
    idle = {"batch-block8-budget16-small": Comparison(num_positions=100)}

    assert _report(within, golden, "recorded").failure is None
    assert _report(beyond, golden, "recorded").failure == "2 ties among 100 tokens are more than 1%"
    assert "nothing was preempted in batch-block8-budget16-small" in str(_report(idle, golden, "recorded").failure)


def test_golden_file_comes_back_as_it_was_written(tmp_path):
    golden = Golden("ab" * 32, {"transformers": "5.24.0"}, (CASE,))

    save_golden(golden, tmp_path / "new" / "golden.json")

    assert load_golden(tmp_path / "new" / "golden.json") == golden
