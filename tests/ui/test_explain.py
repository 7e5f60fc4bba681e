"""Each decision of the scheduler is one sentence with its numbers."""

from __future__ import annotations

import itertools

import pytest

from workbench.telemetry.records import CacheMiss, Decision, Explanation, Reason
from workbench.ui.explain import explain, explain_miss


def words(decision: Decision, reason: Reason, numbers: dict[str, int], cause: str | None = None) -> str:
    return explain(Explanation("r5", decision, reason, numbers, cause))


ROOM = {"needed_blocks": 12, "free_blocks": 40, "tokens": 192}
SHORT = {"needed_blocks": 3, "free_blocks": 1, "freed_blocks": 14}


@pytest.mark.parametrize(
    ("decision", "reason", "numbers", "sentence"),
    [
        (
            Decision.ADMITTED,
            Reason.ROOM,
            ROOM,
            "admitted: needs 12 blocks, 40 are free; 192 tokens computed in this step",
        ),
        (
            Decision.ADMITTED,
            Reason.ROOM,
            ROOM | {"cached_tokens": 160},
            "admitted: needs 12 blocks, 40 are free; 160 tokens found in the cache; 192 tokens computed in this step",
        ),
        (
            Decision.ADMITTED,
            Reason.PAST_HEAD,
            ROOM | {"overtaken": 2},
            "admitted: before 2 earlier requests that cannot start yet; needs 12 blocks, 40 are free; "
            "192 tokens computed in this step",
        ),
        (
            Decision.RESUMED,
            Reason.ROOM,
            {"needed_blocks": 1, "free_blocks": 1, "tokens": 1, "swapped_blocks": 14},
            "resumed: needs 1 block, 1 is free; 14 blocks brought back from host memory; 1 token computed in this step",
        ),
        (
            Decision.CHUNKED,
            Reason.TOKEN_BUDGET,
            {"tokens": 256, "wanted_tokens": 2048, "budget": 512},
            "computed in part: 256 of 2,048 tokens fit into the step's budget of 512",
        ),
        (
            Decision.DEFERRED,
            Reason.TOKEN_BUDGET,
            {"tokens": 0, "wanted_tokens": 7, "budget": 512},
            "waiting: 7 tokens to compute, the step's budget of 512 is spent",
        ),
        (
            Decision.DEFERRED,
            Reason.NO_FREE_BLOCKS,
            {"needed_blocks": 12, "free_blocks": 9},
            "waiting: needs 12 blocks, 9 are free",
        ),
        (
            Decision.DEFERRED,
            Reason.NO_FREE_RUN,
            {"needed_blocks": 12, "free_blocks": 20, "longest_run": 9},
            "waiting: needs 12 consecutive blocks, 20 are free, the longest run is 9",
        ),
        (
            Decision.DEFERRED,
            Reason.MAX_NUM_SEQS,
            {"running": 64, "max_num_seqs": 64},
            "waiting: 64 of 64 sequences run",
        ),
        (
            Decision.DEFERRED,
            Reason.MAX_NUM_SEQS,
            {"running": 62, "max_num_seqs": 64, "wanted_seqs": 4},
            "waiting: 62 of 64 sequences run, this request brings 4",
        ),
        (Decision.DEFERRED, Reason.BEHIND_HEAD, {"position": 1}, "waiting: 1 request before it in the queue"),
        (
            Decision.DEFERRED,
            Reason.PREEMPTED_THIS_STEP,
            {"num_preempted": 2},
            "waiting: 2 requests had to make room in this step, so nobody starts",
        ),
        (
            Decision.CHUNKED,
            Reason.MORE_URGENT,
            {"tokens": 6, "wanted_tokens": 16, "priority": 5, "urgent_priority": 0},
            "computed in part: another request is more urgent (priority 0 against 5): "
            "6 of 16 tokens are left of this step",
        ),
        (
            Decision.FAILED,
            Reason.OUTGREW_POOL,
            {"needed_blocks": 65, "num_blocks": 64},
            "failed: needs 65 blocks, the whole pool has 64",
        ),
    ],
)
def test_decision_is_explained_with_the_numbers_that_the_rule_compared(
    decision: Decision, reason: Reason, numbers: dict[str, int], sentence: str
):
    assert words(decision, reason, numbers) == sentence


@pytest.mark.parametrize(
    ("reason", "numbers", "sentence"),
    [
        (Reason.NO_FREE_BLOCKS, {}, "r9 needed 3 blocks, 1 was free; computed again later"),
        (
            Reason.MORE_URGENT,
            {"priority": 5, "urgent_priority": -1},
            "r9 is more urgent (priority -1 against 5) and needed 3 blocks, 1 was free; computed again later",
        ),
        (
            Reason.NO_FREE_RUN,
            {"longest_run": 2},
            "r9 needed 3 blocks, 1 was free, the longest run is 2; computed again later",
        ),
        (
            Reason.STANDSTILL,
            {},
            "every running request waited for beams that do not fit; r9 needed 3 blocks, 1 was free; "
            "computed again later",
        ),
        (
            Reason.NO_FREE_BLOCKS,
            {"swapped_blocks": 14},
            "r9 needed 3 blocks, 1 was free; kept in host memory (14 blocks)",
        ),
        (
            Reason.NO_FREE_BLOCKS,
            {"swapped_blocks": 14, "swap_us": 400, "recompute_us": 31_000},
            "r9 needed 3 blocks, 1 was free; kept in host memory (14 blocks, est. 0.4 ms against 31.0 ms)",
        ),
        (
            Reason.NO_FREE_BLOCKS,
            {"swap_us": 5_000, "recompute_us": 1_200},
            "r9 needed 3 blocks, 1 was free; computed again later (est. 1.2 ms against 5.0 ms)",
        ),
        (
            Reason.NO_FREE_BLOCKS,
            {"free_swap_blocks": 1},
            "r9 needed 3 blocks, 1 was free; computed again later, since only 1 block of the swap space is free",
        ),
    ],
)
def test_preemption_is_explained_with_its_cause_and_what_became_of_the_context(
    reason: Reason, numbers: dict[str, int], sentence: str
):
    assert words(Decision.PREEMPTED, reason, SHORT | numbers, "r9") == f"preempted: {sentence}"


def test_preemption_that_somebody_asked_for_names_no_cause():
    numbers = {"free_blocks": 4, "freed_blocks": 14}
    sentence = "preempted: somebody asked for it; 14 blocks were given back"
    assert words(Decision.PREEMPTED, Reason.REQUESTED, numbers) == f"{sentence}; computed again later"
    swapped = words(Decision.PREEMPTED, Reason.REQUESTED, numbers | {"swapped_blocks": 14})
    assert swapped == f"{sentence}; kept in host memory (14 blocks)"


def test_preemption_for_its_own_sake_or_without_a_known_cause_is_told_so():
    assert words(Decision.PREEMPTED, Reason.NO_FREE_BLOCKS, SHORT, "r5").startswith("preempted: it needed 3 blocks")
    assert words(Decision.PREEMPTED, Reason.NO_FREE_BLOCKS, SHORT).startswith("preempted: another request needed 3")


@pytest.mark.parametrize(("decision", "reason"), list(itertools.product(Decision, Reason)))
def test_every_pair_has_a_sentence_even_without_numbers_and_with_unknown_ones(decision: Decision, reason: Reason):
    for sentence in (words(decision, reason, {}), words(decision, reason, {"something_new": 3}, "r9")):
        opening, colon, rule = sentence.partition(": ")
        assert opening
        assert colon
        assert rule
        assert "None" not in sentence


@pytest.mark.parametrize(
    ("miss", "differs_at", "sentence"),
    [
        (None, None, ""),
        (CacheMiss.DISABLED, None, "prefix cache off"),
        (CacheMiss.BYPASSED, None, "cache bypassed for prompt logprobs"),
        (CacheMiss.SHORTER_THAN_BLOCK, None, "shorter than a block"),
        (CacheMiss.EVICTED, None, "the next block was evicted"),
        (CacheMiss.DIFFERS, 1290, "differs at token 1,290"),
        (CacheMiss.DIFFERS, 0, "nothing cached begins like it"),
        (CacheMiss.DIFFERS, None, "differs"),
    ],
)
def test_cache_miss_is_explained(miss: CacheMiss | None, differs_at: int | None, sentence: str):
    assert explain_miss(miss, differs_at) == sentence
