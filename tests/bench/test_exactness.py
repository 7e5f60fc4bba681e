"""The rule of comparison itself, on made-up answers. The engine's own answers: tests/test_exactness.py."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest

from tests.engine.test_messages import RECORD
from workbench.bench.beams import BeamCase, differences, load_cases, save_cases
from workbench.bench.exactness import ALL_SETTINGS, Comparison, Setting, _report, compare
from workbench.bench.golden import Golden, GoldenCase, load_golden, save_golden
from workbench.bench.reference import Beam, ReferenceAnswer
from workbench.telemetry.records import BlockTransfer, TransferKind

CONTIGUOUS = "contiguous"
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


def test_full_product_holds_each_setting_that_makes_sense_once():
    assert len(ALL_SETTINGS) == 66
    assert len({str(setting) for setting in ALL_SETTINGS}) == 66
    assert sum(setting.has_small_pool for setting in ALL_SETTINGS) == 30
    assert sum(setting.is_preempting for setting in ALL_SETTINGS) == 24
    assert sum(setting.preemption_mode == "swap" for setting in ALL_SETTINGS) == 12
    assert sum(setting.kv_layout == "contiguous" for setting in ALL_SETTINGS) == 18


@pytest.mark.parametrize(
    "setting",
    [
        Setting(False, 8, 16, has_small_pool=True, has_prefix_cache=False),
        Setting(True, 8, 16, has_small_pool=False, has_prefix_cache=False, preemption_mode="swap"),
        Setting(True, 8, 16, has_small_pool=True, has_prefix_cache=False, preemption_mode="swap", kv_layout=CONTIGUOUS),
        Setting(True, 8, 16, has_small_pool=False, has_prefix_cache=True, kv_layout=CONTIGUOUS),
    ],
    ids=str,
)
def test_full_product_leaves_out_what_would_not_happen(setting: Setting):
    assert not setting.makes_sense
    assert setting not in ALL_SETTINGS


def test_small_pool_holds_the_longest_request_and_two_blocks_more():
    setting = Setting(True, 8, 16, has_small_pool=True, has_prefix_cache=False, preemption_mode="swap")
    long_case = GoldenCase("q", tuple(range(20)), CASE.answer)

    assert str(setting) == "batch-block8-budget16-nocache-small-swap-paged"
    assert setting.engine_fields([CASE, long_case]) == {
        "block_size": 8,
        "max_num_batched_tokens": 16,
        "enable_prefix_caching": False,
        "preemption_mode": "swap",
        "kv_layout": "paged",
        "num_blocks": 5,
    }


AMPLE = Setting(True, 8, 16, has_small_pool=False, has_prefix_cache=False)
RECOMPUTING = Setting(True, 8, 16, has_small_pool=True, has_prefix_cache=False)
SWAPPING = Setting(True, 8, 16, has_small_pool=True, has_prefix_cache=False, preemption_mode="swap")
RUNS = Setting(True, 8, 16, has_small_pool=True, has_prefix_cache=False, kv_layout=CONTIGUOUS)


def failure(
    results: dict[Setting, Comparison] | None = None, searches: dict[str, list[str]] | None = None
) -> str | None:
    golden = Golden("0" * 64, {"transformers": "5", "torch": "2"}, (CASE,))
    return _report(results or {}, searches or {}, golden, "recorded", {}).failure


def test_report_fails_when_ties_exceed_one_percent():
    assert failure({AMPLE: Comparison(num_positions=100, ties=["p@1"])}) is None
    beyond = failure({AMPLE: Comparison(num_positions=100, ties=["p@1", "p@2"])})
    assert beyond == "2 ties among 100 tokens are more than 1%"


def test_report_fails_when_a_small_pool_never_preempted_or_swapped():
    idle = Comparison(num_positions=100)
    busy = Comparison(num_positions=100, num_preemptions=1)

    assert failure({AMPLE: idle, RECOMPUTING: busy, RUNS: idle}) is None
    assert failure({RECOMPUTING: idle}) == (
        "nothing was preempted in batch-block8-budget16-nocache-small-recompute-paged, so these showed nothing"
    )
    assert failure({SWAPPING: busy}) == (
        "nothing was swapped in batch-block8-budget16-nocache-small-swap-paged, so these showed nothing"
    )
    assert failure({SWAPPING: Comparison(num_positions=100, num_preemptions=1, num_swapped_blocks=1)}) is None


def test_comparison_counts_blocks_that_come_back_from_host_memory():
    kinds = (TransferKind.SWAP_OUT, TransferKind.SWAP_IN, TransferKind.SWAP_IN, TransferKind.COPY)
    comparison = Comparison()
    comparison.count_swapped(msgspec.structs.replace(RECORD, transfers=[BlockTransfer(k, 0, 0, "") for k in kinds]))

    assert comparison.num_swapped_blocks == 2


BEAMS = BeamCase("p", (1, 2), 2, (Beam((5, 6), -0.5), Beam((5, 7), -0.75)))


def test_beams_differ_in_tokens_order_score_or_number():
    first, second = BEAMS.beams

    assert differences(BEAMS, [Beam((5, 6), -0.5005), second]) == []
    assert differences(BEAMS, [second, first]) == [
        "p-2beams@0: [5, 7] instead of [5, 6]",
        "p-2beams@1: [5, 6] instead of [5, 7]",
    ]
    assert differences(BEAMS, [first, Beam((5, 7), -0.76)]) == ["p-2beams@1: score -0.76 instead of -0.75"]
    assert differences(BEAMS, [first, Beam((5, 7), math.nan)]) == ["p-2beams@1: score nan instead of -0.75"]
    assert differences(BEAMS, [first]) == ["p-2beams: 1 answers instead of 2"]


def test_report_fails_when_a_beam_search_differs():
    assert failure(searches={"p-2beams": []}) is None
    assert failure(searches={"p-2beams": [], "q-2beams": ["q-2beams@0: …"]}) == (
        "beam searches differ from the reference: q-2beams"
    )


def test_beam_file_comes_back_as_it_was_written(tmp_path):
    save_cases([BEAMS], Golden("ab" * 32, {"transformers": "5.24.0"}, ()), tmp_path / "new" / "beams.json")

    assert load_cases(tmp_path / "new" / "beams.json") == (BEAMS,)


def test_golden_file_comes_back_as_it_was_written(tmp_path):
    golden = Golden("ab" * 32, {"transformers": "5.24.0"}, (CASE,))

    save_golden(golden, tmp_path / "new" / "golden.json")

    assert load_golden(tmp_path / "new" / "golden.json") == golden
