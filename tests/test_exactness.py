"""The engine's greedy answers on the real model equal Hugging Face `generate`, token for token.

A pairwise sample of the settings; `python -m workbench.bench exactness` runs the full product.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.bench.exactness import ALL_SETTINGS, MAX_TIE_FRACTION, NUM_NEW_TOKENS, Setting, run_setting
from workbench.bench.golden import Golden, GoldenCase, load_golden
from workbench.bench.prompts import exactness_prompts
from workbench.bench.reference import ReferenceAnswer, ReferenceModel
from workbench.bench.speculation_prompts import speculation_prompts
from workbench.bench.speculative_exactness import Place, SpeculativeSetting, compare_speculative, plain_answers
from workbench.llm import LLM
from workbench.models.gguf_file import GGUFFile
from workbench.models.tokenizer import Tokenizer

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

SINGLES = (
    Setting(False, 8, 2048, False, True),
    Setting(False, 16, 16, False, False, kv_layout="contiguous"),
    Setting(False, 32, 2048, False, False, kv_layout="contiguous"),
)
"""One by one is slow, so these share the prompts among them."""
BATCHES = (
    Setting(True, 8, 16, True, False, kv_layout="contiguous"),
    Setting(True, 16, 2048, True, True),
    Setting(True, 16, 2048, False, False),
    Setting(True, 8, 2048, True, False, "swap"),
    Setting(True, 16, 16, True, False, "swap"),
    Setting(True, 32, 16, True, True, "swap"),
)

DRAFTS = {
    Place(False, False): ((1, 8, False), (5, 1, False), (8, 8, True)),
    Place(False, True): ((2, 8, False), (3, 1, False), (4, 8, False)),
    Place(True, False): ((6, 8, False),),
    Place(True, True): ((7, 8, False),),
}
"""(most drafted tokens, requests together, adaptive) of prompt look-up, by the engine they run in."""
FOR_LARGE_BLOCKS = (2, 8, 9, 10, 12, 13, 14, 15)
"""Prompts that, in blocks of 32, both preempt each other within 32 tokens and leave some of the cache alone."""
NUM_COMPARED = 32
"""First tokens of each answer that the sample compares; the full product compares all 64."""
NUM_DRAFTED = 32
"""Tokens of each answer with drafts."""


@pytest.fixture(scope="module")
def golden(default_model_path: Path) -> Golden:
    answers = load_golden()
    answers.check_model(default_model_path)
    return answers


def beginnings(cases: Sequence[GoldenCase]) -> list[GoldenCase]:
    """The same prompts with the beginnings of their answers."""
    return [
        replace(
            case,
            answer=ReferenceAnswer(
                case.answer.token_ids[:NUM_COMPARED],
                {position: ids for position, ids in case.answer.ties.items() if position < NUM_COMPARED},
            ),
        )
        for case in cases
    ]


def test_sample_holds_every_pair_of_values_that_the_full_product_holds():
    def pairs(settings):
        values = [tuple(vars(setting).items()) for setting in settings]
        return {pair for setting in values for pair in itertools.combinations(setting, 2)}

    assert pairs((*SINGLES, *BATCHES)) == pairs(ALL_SETTINGS)


def test_golden_prompts_are_what_our_tokenizer_makes_of_them(golden: Golden, default_model_path: Path):
    prompts = exactness_prompts(Tokenizer(GGUFFile(default_model_path).metadata))

    assert {case.name: list(case.prompt_token_ids) for case in golden.cases} == prompts


def test_golden_covers_chat_and_raw_prompts_of_1_to_900_tokens(golden: Golden):
    lengths = [len(case.prompt_token_ids) for case in golden.cases]

    assert len(lengths) == 16
    assert (min(lengths), max(lengths)) == (1, 900)
    assert {len(case.answer.token_ids) for case in golden.cases} == {NUM_NEW_TOKENS}
    assert {case.name.partition("_")[0] for case in golden.cases} == {"raw", "chat"}


@pytest.mark.parametrize("index", range(len(SINGLES)), ids=[str(setting) for setting in SINGLES])
def test_answers_equal_the_reference_when_asked_one_by_one(index: int, golden: Golden):
    cases = beginnings(golden.cases[index :: len(SINGLES)])

    result = run_setting(SINGLES[index], cases)

    assert result.mismatches == []
    assert result.num_positions == NUM_COMPARED * len(cases) * (2 if SINGLES[index].has_prefix_cache else 1)
    assert (result.num_cached_tokens > 0) == SINGLES[index].has_prefix_cache
    assert len(result.ties) <= MAX_TIE_FRACTION * result.num_positions


@pytest.mark.parametrize("index", range(len(BATCHES)), ids=[str(setting) for setting in BATCHES])
def test_answers_equal_the_reference_when_batched(index: int, golden: Golden):
    """Every other prompt: the odd settings take those that the even ones leave, 900 tokens among them."""
    setting = BATCHES[index]
    chosen = FOR_LARGE_BLOCKS if setting.block_size == 32 else range(index % 2, len(golden.cases), 2)
    cases = beginnings([golden.cases[number] for number in chosen])

    result = run_setting(setting, cases)

    assert result.mismatches == []
    assert result.num_positions == NUM_COMPARED * len(cases) * (2 if setting.has_prefix_cache else 1)
    assert (result.num_cached_tokens > 0) == setting.has_prefix_cache
    assert len(result.ties) <= MAX_TIE_FRACTION * result.num_positions
    assert (result.num_preemptions > 0) == setting.is_preempting
    assert (result.num_swapped_blocks > 0) == (setting.preemption_mode == "swap")


@pytest.fixture(scope="module")
def drafted_prompts(golden: Golden, default_model_path: Path):
    """A few of every kind, those among them that are answered by copying."""
    own = speculation_prompts(Tokenizer(GGUFFile(default_model_path).metadata), per_kind=3)
    short = [case for case in golden.cases if len(case.prompt_token_ids) < 70][:4]
    return {case.name: case.prompt_token_ids for case in short} | {
        prompt.name: prompt.token_ids for prompt in own if prompt.kind == "copy"
    }


@pytest.fixture(scope="module")
def undrafted(drafted_prompts):
    with LLM() as llm:
        return plain_answers(llm, drafted_prompts, NUM_DRAFTED)


def test_sample_of_drafts_holds_every_count_and_every_engine_with_each_number_of_requests():
    assert {count for settings in DRAFTS.values() for count, _, _ in settings} == set(range(1, 9))
    assert {(place, size) for place, settings in DRAFTS.items() for _, size, _ in settings} == {
        (place, size) for place in DRAFTS for size in (1, 8) if size > 1 or not place.has_small_pool
    }


@pytest.mark.parametrize("place", DRAFTS, ids=str)
def test_drafts_do_not_change_greedy_answers(place: Place, drafted_prompts, undrafted):
    with LLM(**place.engine_fields(drafted_prompts, NUM_DRAFTED)) as llm:
        for count, size, is_adaptive in DRAFTS[place]:
            setting = SpeculativeSetting("ngram", count, is_adaptive, size, place)

            result = compare_speculative(llm, setting, drafted_prompts, undrafted)

            assert result.mismatches == (), setting
            assert result.num_positions == NUM_DRAFTED * 7 * (2 if place.has_prefix_cache else 1)
            assert (result.num_preemptions > 0) == place.has_small_pool, setting
            assert (result.num_cached_tokens > 0) == place.has_prefix_cache, setting
            assert is_adaptive or result.num_accepted_tokens > 0, setting


@pytest.mark.slow_reference
def test_recorded_answers_are_still_what_transformers_says(golden: Golden, reference_model: ReferenceModel):
    """Derived live, one raw and one chat prompt, so that the record cannot drift from its source."""
    for case in golden.cases:
        if case.name in ("raw_digits", "chat_turns"):
            assert reference_model.answer(case.prompt_token_ids, NUM_NEW_TOKENS) == case.answer
