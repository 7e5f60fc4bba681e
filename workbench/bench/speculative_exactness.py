"""Greedy answers with drafts against those without, token for token, over every way of drafting.

The reference is the engine's own answer without drafts; that this is right is shown by `exactness` itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workbench.bench.command_line import log
from workbench.config import DEFAULT_MODEL
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import METHODS, NO_SPECULATION, SpeculationParams

if TYPE_CHECKING:
    from workbench.llm import LLM

NUM_NEW_TOKENS: Final = 64
BLOCK_SIZE: Final = 8
"""Small, so that answers soon need another block."""
SPARE_BLOCKS: Final = 2
"""Blocks that a small pool has beyond what its longest request needs."""
COUNTS: Final = tuple(range(1, 9))
BATCH_SIZES: Final = (1, 8)

Prompts = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Place:
    """The engine that drafts: requests of several settings run in one."""

    has_small_pool: bool
    """A pool that holds little more than the longest request, so that others are preempted."""
    has_prefix_cache: bool
    """Every prompt is sent twice, the second time to a cache that holds its blocks unless they were evicted."""

    def __str__(self) -> str:
        return f"{'cache' if self.has_prefix_cache else 'nocache'}-{'small' if self.has_small_pool else 'ample'}"

    def engine_fields(self, prompts: Prompts, max_tokens: int) -> dict[str, Any]:
        """Return the EngineConfig fields of this place."""
        fields: dict[str, Any] = {"block_size": BLOCK_SIZE, "enable_prefix_caching": self.has_prefix_cache}
        if self.has_small_pool:
            longest = max(map(len, prompts.values())) + max_tokens
            fields["num_blocks"] = -(-longest // BLOCK_SIZE) + SPARE_BLOCKS
        return fields


@dataclass(frozen=True)
class SpeculativeSetting:
    """One way to draft, under which the answers must not change."""

    method: str
    num_speculative_tokens: int
    is_adaptive: bool
    batch_size: int
    """Requests that run together."""
    place: Place

    def __str__(self) -> str:
        count = f"{'adaptive' if self.is_adaptive else 'k'}{self.num_speculative_tokens}"
        return f"{self.method}-{count}-batch{self.batch_size}-{self.place}"

    @property
    def makes_sense(self) -> bool:
        """A request alone is never preempted; and the most tokens are enough to adapt from."""
        return (self.batch_size > 1 or not self.place.has_small_pool) and (
            not self.is_adaptive or self.num_speculative_tokens == max(COUNTS)
        )

    @property
    def wishes(self) -> SpeculationParams:
        """What each request asks for."""
        return SpeculationParams(
            method=self.method,
            num_speculative_tokens=self.num_speculative_tokens,
            speculative_adaptive=self.is_adaptive,
            draft_confidence=0.0,  # drafts as long as they may be, right or wrong
        )


@dataclass
class SpeculativeComparison:
    """What came of comparing answers under one setting."""

    num_positions: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    mismatches: tuple[str, ...] = ()
    """Answers that were wrong: `prompt@position: 5 instead of 7`."""


def settings_of(methods: Sequence[str]) -> list[SpeculativeSetting]:
    """Return the full product for these methods, those of one place together."""
    places = [Place(*values) for values in itertools.product((False, True), (False, True))]
    return [
        setting
        for place, method, count, is_adaptive, batch_size in itertools.product(
            places, methods, COUNTS, (False, True), BATCH_SIZES
        )
        if (setting := SpeculativeSetting(method, count, is_adaptive, batch_size, place)).makes_sense
    ]


def run_speculation(
    prompts: Prompts, only: str, draft_model: str | None
) -> dict[SpeculativeSetting, SpeculativeComparison]:
    """Run every method that an engine with this draft model offers, where its setting's name contains `only`."""
    from workbench.llm import LLM

    fields = {} if draft_model is None else {"draft_model": draft_model}
    if not any(only in str(setting) for setting in settings_of(METHODS[1:])):
        return {}
    with LLM(DEFAULT_MODEL, **fields) as llm:
        methods = [method for method, reason in llm.service.status.speculation.items() if not reason]
        expected = plain_answers(llm, prompts, NUM_NEW_TOKENS)
    wanted = [each for each in settings_of(methods) if each.method != "none" and only in str(each)]
    results = {}
    for place, group in itertools.groupby(wanted, key=lambda setting: setting.place):
        with LLM(DEFAULT_MODEL, **fields, **place.engine_fields(prompts, NUM_NEW_TOKENS)) as llm:
            for setting in group:
                results[setting] = result = compare_speculative(llm, setting, prompts, expected)
                log(
                    f"{len(results)}/{len(wanted)} {setting}: {result.num_positions} tokens, "
                    f"{len(result.mismatches)} answers wrong, {result.num_accepted_tokens} of "
                    f"{result.num_draft_tokens} drafted tokens accepted, {result.num_preemptions} preemptions, "
                    f"{result.num_cached_tokens} cached"
                )
                for line in result.mismatches:
                    log(f"    {line}")
    return results


def plain_answers(llm: LLM, prompts: Prompts, max_tokens: int) -> dict[str, tuple[int, ...]]:
    """Answer all prompts without drafts."""
    outputs = llm.generate(list(prompts.values()), _greedy(max_tokens), speculation=NO_SPECULATION, use_tqdm=False)
    return {name: output.outputs[0].token_ids for name, output in zip(prompts, outputs, strict=True)}


def compare_speculative(
    llm: LLM, setting: SpeculativeSetting, prompts: Prompts, expected: Mapping[str, Sequence[int]]
) -> SpeculativeComparison:
    """Answer the prompts with drafts, as many together as the setting says, and compare."""
    comparison = SpeculativeComparison()
    max_tokens = max(map(len, expected.values()))
    for names in _groups(list(prompts), setting.batch_size, 2 if setting.place.has_prefix_cache else 1):
        chosen = [prompts[name] for name in names]
        outputs = llm.generate(chosen, _greedy(max_tokens), speculation=setting.wishes, use_tqdm=False)
        for name, output in zip(names, outputs, strict=True):
            comparison.num_positions += len(expected[name])
            comparison.num_preemptions += output.metrics.num_preemptions
            comparison.num_cached_tokens += output.metrics.num_cached_tokens
            comparison.num_draft_tokens += output.metrics.num_draft_tokens
            comparison.num_accepted_tokens += output.metrics.num_accepted_tokens
            comparison.mismatches += difference(name, output.outputs[0].token_ids, expected[name])
    return comparison


def _groups(names: Sequence[str], size: int, times: int) -> Iterator[Sequence[str]]:
    for _ in range(times):
        for start in range(0, len(names), size):
            yield names[start : start + size]


def difference(name: str, answer: Sequence[int], expected: Sequence[int]) -> tuple[str, ...]:
    """Say where an answer first differs from what is expected; nothing where it does not."""
    for position, (got, wanted) in enumerate(itertools.zip_longest(answer, expected)):
        if got != wanted:
            return (f"{name}@{position}: {got} instead of {wanted}",)
    return ()


def failures_of(results: Mapping[SpeculativeSetting, SpeculativeComparison]) -> Iterator[str]:
    """Say what is wrong, and where what a method or a place is there for never happened."""
    num_wrong = sum(len(result.mismatches) for result in results.values())
    if num_wrong:
        yield f"{num_wrong} answers with drafts differ from those without"
    for method in dict.fromkeys(setting.method for setting in results):
        if not sum(result.num_draft_tokens for setting, result in results.items() if setting.method == method):
            yield f"nothing was drafted by {method}, so it showed nothing"
    for place in dict.fromkeys(setting.place for setting in results):
        found = [result for setting, result in results.items() if setting.place == place]
        if place.has_small_pool and not sum(result.num_preemptions for result in found):
            yield f"nothing was preempted in {place}, so it showed nothing"
        if place.has_prefix_cache and not sum(result.num_cached_tokens for result in found):
            yield f"nothing was found in the cache in {place}, so it showed nothing"


def figures_of(results: Mapping[SpeculativeSetting, SpeculativeComparison]) -> dict[str, float]:
    """Return the counts of all settings together."""
    found = results.values()
    return {
        "speculative_settings_count": len(results),
        "speculative_tokens_compared_count": sum(each.num_positions for each in found),
        "speculative_mismatches_count": sum(len(each.mismatches) for each in found),
        "speculative_preemptions_count": sum(each.num_preemptions for each in found),
        "draft_tokens_count": sum(each.num_draft_tokens for each in found),
        "accepted_tokens_count": sum(each.num_accepted_tokens for each in found),
    }


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
