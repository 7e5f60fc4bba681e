"""The rules of comparing answers with drafts. The engine's own answers: tests/test_exactness.py."""

from __future__ import annotations

from workbench.bench.speculative_exactness import (
    Place,
    SpeculativeComparison,
    SpeculativeSetting,
    compare_speculative,
    difference,
    failures_of,
    plain_answers,
    settings_of,
)
from workbench.llm import LLM

AMPLE = Place(has_small_pool=False, has_prefix_cache=False)
SMALL = Place(has_small_pool=True, has_prefix_cache=False)
CACHED = Place(has_small_pool=False, has_prefix_cache=True)


def setting(place: Place = AMPLE, method: str = "ngram", count: int = 4) -> SpeculativeSetting:
    return SpeculativeSetting(method, count, False, 8, place)


def test_full_product_holds_each_way_to_draft_that_makes_sense_once():
    found = settings_of(["ngram", "eagle"])

    assert len(found) == len(set(map(str, found))) == 2 * 9 * 6
    assert {one.num_speculative_tokens for one in found if not one.is_adaptive} == set(range(1, 9))
    assert {one.num_speculative_tokens for one in found if one.is_adaptive} == {8}
    assert {one.batch_size for one in found if one.place.has_small_pool} == {8}
    assert str(found[0]) == "ngram-k1-batch1-nocache-ample"


def test_small_pool_holds_the_longest_request_and_two_blocks_more():
    assert SMALL.engine_fields({"p": [1] * 20, "q": [1] * 5}, 12) == {
        "block_size": 8,
        "enable_prefix_caching": False,
        "num_blocks": 6,
    }


def test_first_difference_is_told():
    assert difference("p", [1, 2, 3], [1, 2, 3]) == ()
    assert difference("p", [1, 9, 8], [1, 2, 3]) == ("p@1: 9 instead of 2",)
    assert difference("p", [1, 2], [1, 2, 3]) == ("p@2: None instead of 3",)
    assert difference("p", [1, 2, 3, 4], [1, 2, 3]) == ("p@3: 4 instead of None",)


def test_wrong_answers_and_what_never_happened_are_failures():
    drafted = SpeculativeComparison(num_draft_tokens=3)

    assert list(failures_of({setting(): drafted})) == []
    assert list(failures_of({setting(): SpeculativeComparison(num_draft_tokens=3, mismatches=("p@1: …",))})) == [
        "1 answers with drafts differ from those without"
    ]
    assert list(failures_of({setting(): drafted, setting(method="eagle"): SpeculativeComparison()})) == [
        "nothing was drafted by eagle, so it showed nothing"
    ]
    assert list(failures_of({setting(SMALL): drafted, setting(CACHED): drafted})) == [
        "nothing was preempted in nocache-small, so it showed nothing",
        "nothing was found in the cache in cache-ample, so it showed nothing",
    ]
    busy = SpeculativeComparison(num_draft_tokens=3, num_preemptions=1)
    assert list(failures_of({setting(SMALL, count=1): busy, setting(SMALL, count=2): drafted})) == []


def test_answers_of_an_engine_are_compared_and_counted(tiny_model_path):
    prompts = {"loop": [40, 41, 42] * 8, "short": [50], "other": [60, 61, 62, 63]}
    with LLM(str(tiny_model_path), num_blocks=64, **CACHED.engine_fields(prompts, 12)) as llm:
        expected = plain_answers(llm, prompts, 12)
        right = compare_speculative(llm, setting(CACHED), prompts, expected)
        wrong = compare_speculative(llm, setting(CACHED), prompts, expected | {"short": (*expected["short"][:-1], 268)})

    assert (right.mismatches, right.num_positions) == ((), 2 * 3 * 12)
    assert right.num_draft_tokens > 0 and right.num_cached_tokens > 0
    assert [line.partition(":")[0] for line in wrong.mismatches] == ["short@11", "short@11"]
