"""Greedy answers and beams against Hugging Face `generate`, token for token, over every combination of settings.

Then greedy answers with drafts against those without, over every way of drafting: see `speculative_exactness`.

Where the reference itself is within 1e-3 of a tie, the other token is accepted; the engine is then
asked again with the reference's tokens as context, so that everything after it is compared too.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench.bench.command_line import log
from workbench.bench.report import Report, describe_environment
from workbench.bench.speculative_exactness import (
    SpeculativeComparison,
    SpeculativeSetting,
    failures_of,
    figures_of,
    run_speculation,
)
from workbench.config import BLOCK_SIZES, DEFAULT_MODEL, KV_LAYOUTS
from workbench.models.default_model import resolve_model_path
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import StepRecord, TransferKind

if TYPE_CHECKING:
    from workbench.bench.beams import BeamCase
    from workbench.bench.golden import Golden, GoldenCase
    from workbench.bench.reference import ReferenceAnswer
    from workbench.llm import LLM

NUM_NEW_TOKENS: Final = 64
TOKEN_BUDGETS: Final = (16, 2048)
SPARE_BLOCKS: Final = 2
"""Blocks that a small pool has beyond what its longest request needs."""
MAX_TIE_FRACTION: Final = 0.01

Continue = Callable[[Sequence[int], int], Sequence[int]]
"""(context, number of tokens) → the engine's greedy continuation."""


@dataclass(frozen=True)
class Setting:
    """One way to run the engine, under which the answers must not change."""

    is_batched: bool
    """All prompts at once; otherwise one after the other."""
    block_size: int
    max_num_batched_tokens: int
    has_small_pool: bool
    """A pool that holds little more than the longest request, so that others are preempted."""
    has_prefix_cache: bool
    """Every prompt is sent twice, the second time to a cache that holds its blocks unless they were evicted."""
    preemption_mode: str = "recompute"
    """What becomes of the preempted."""
    kv_layout: str = "paged"

    def __str__(self) -> str:
        parts = ("batch" if self.is_batched else "single", f"block{self.block_size}")
        pool, cache = "small" if self.has_small_pool else "ample", "cache" if self.has_prefix_cache else "nocache"
        ways = (self.preemption_mode,) if self.is_preempting else ()
        return "-".join((*parts, f"budget{self.max_num_batched_tokens}", cache, pool, *ways, self.kv_layout))

    @property
    def makes_sense(self) -> bool:
        """Whether it differs from all others in what happens.

        A request alone is never preempted, and contiguous ones neither, since they reserve what they may need; nor do
        these have a prefix cache.
        """
        if self.kv_layout == "contiguous" and self.has_prefix_cache:
            return False
        return (self.is_batched or not self.has_small_pool) and (
            self.is_preempting or self.preemption_mode == "recompute"
        )

    @property
    def is_preempting(self) -> bool:
        """Whether some requests have to make room for others while they run."""
        return self.has_small_pool and self.kv_layout == "paged"

    def engine_fields(self, cases: Sequence[GoldenCase]) -> dict[str, Any]:
        """Return the EngineConfig fields of this setting."""
        fields: dict[str, Any] = {
            "block_size": self.block_size,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "enable_prefix_caching": self.has_prefix_cache,
            "preemption_mode": self.preemption_mode,
            "kv_layout": self.kv_layout,
        }
        blocks = [-(-(len(case.prompt_token_ids) + len(case.answer.token_ids)) // self.block_size) for case in cases]
        fields["num_blocks"] = (max(blocks) if self.has_small_pool else sum(blocks)) + SPARE_BLOCKS
        return fields


ALL_SETTINGS: Final = tuple(
    setting
    for values in itertools.product(
        (False, True), BLOCK_SIZES, TOKEN_BUDGETS, (False, True), (False, True), ("recompute", "swap"), KV_LAYOUTS
    )
    if (setting := Setting(*values)).makes_sense
)


@dataclass
class Comparison:
    """What came of comparing answers under one setting."""

    num_positions: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that were found in the cache and not computed."""
    num_swapped_blocks: int = 0
    """Blocks that were brought back from host memory."""
    ties: list[str] = field(default_factory=list)
    """Positions where the engine took the other token of a tie: `prompt@position`."""
    mismatches: list[str] = field(default_factory=list)
    """Positions where it was wrong: `prompt@position: 5 instead of 7`."""

    def count_swapped(self, record: StepRecord) -> None:
        """Note what a step brought back from host memory."""
        self.num_swapped_blocks += sum(transfer.kind is TransferKind.SWAP_IN for transfer in record.transfers)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--record", action="store_true", help="derive the reference answers, write tests/golden, stop")
    source.add_argument("--golden", action="store_true", help="take the recorded answers instead of deriving them now")
    parser.add_argument(
        "--only", metavar="TEXT", help="only settings whose name contains this: small, swap, beams, ngram, …"
    )
    parser.add_argument("--draft", metavar="MODEL", help="a draft model, to draft with it too")


def run(args: argparse.Namespace) -> Report:
    """Compare all settings with the reference; the report fails on any mismatch or too many ties."""
    from workbench.bench.beams import load_cases, save_cases
    from workbench.bench.golden import GOLDEN_PATH, load_golden, save_golden

    path = resolve_model_path(DEFAULT_MODEL)
    if args.golden:
        golden, beam_cases = load_golden(), load_cases()
        golden.check_model(path)
    else:
        golden, beam_cases = derive_golden(path)
    if args.record:
        save_golden(golden, GOLDEN_PATH)
        save_cases(beam_cases, golden)
        log(f"wrote {GOLDEN_PATH} and the beams beside it")
    only = args.only or ""
    settings = [setting for setting in ALL_SETTINGS if not args.record and only in str(setting)]
    results = {}
    for number, setting in enumerate(settings, 1):
        results[setting] = result = run_setting(setting, golden.cases)
        log(
            f"{number}/{len(settings)} {setting}: {result.num_positions} tokens, {len(result.mismatches)} wrong, "
            f"{len(result.ties)} ties, {result.num_preemptions} preemptions, {result.num_cached_tokens} cached, "
            f"{result.num_swapped_blocks} blocks swapped"
        )
        for line in (*result.mismatches, *result.ties):
            log(f"    {line}")
    searches = {} if args.record or only not in "beams" else run_beams(beam_cases)
    drafted = {} if args.record else run_speculation(_drafted_prompts(path, golden), only, args.draft)
    return _report(results, searches, golden, "recorded" if args.golden else "derived in this run", drafted)


def _drafted_prompts(path: Path, golden: Golden) -> dict[str, Sequence[int]]:
    """Return the prompts of all other comparisons, and those that are answered by copying."""
    from workbench.bench.speculation_prompts import speculation_prompts
    from workbench.models.gguf_file import GGUFFile
    from workbench.models.tokenizer import Tokenizer

    own = speculation_prompts(Tokenizer(GGUFFile(path).metadata))
    prompts: dict[str, Sequence[int]] = {case.name: case.prompt_token_ids for case in golden.cases}
    return prompts | {prompt.name: prompt.token_ids for prompt in own if prompt.kind == "copy"}


def derive_golden(path: Path) -> tuple[Golden, tuple[BeamCase, ...]]:
    """Let transformers answer every prompt, one by one, greedily and with beams. Takes minutes."""
    from workbench.bench.beams import derive_cases
    from workbench.bench.golden import Golden, GoldenCase, sha256_of
    from workbench.bench.prompts import exactness_prompts
    from workbench.bench.reference import ReferenceModel
    from workbench.models.gguf_file import GGUFFile
    from workbench.models.tokenizer import Tokenizer

    reference = ReferenceModel(path)
    tokenizer = Tokenizer(GGUFFile(path).metadata)
    prompts = exactness_prompts(tokenizer)
    cases = []
    for name, ids in prompts.items():
        log(f"reference answer to {name}, {len(ids)} tokens")
        cases.append(GoldenCase(name, tuple(ids), reference.answer(ids, NUM_NEW_TOKENS)))
    log("reference beams")
    versions = {library: importlib.metadata.version(library) for library in ("transformers", "torch")}
    golden = Golden(sha256_of(path), versions, tuple(cases))
    return golden, derive_cases(reference, prompts, tokenizer.eos_token_ids)


def run_beams(cases: Sequence[BeamCase]) -> dict[str, list[str]]:
    """Run all beam searches on an engine of their own; return of each what differs from the reference."""
    from workbench.bench.beams import compare_all
    from workbench.llm import LLM

    with LLM(DEFAULT_MODEL) as llm:
        found = compare_all(llm, cases)
    log(f"beams: {len(found)} searches, {sum(map(bool, found.values()))} wrong")
    for line in itertools.chain(*found.values()):
        log(f"    {line}")
    return found


def run_setting(setting: Setting, cases: Sequence[GoldenCase]) -> Comparison:
    """Run the cases on an engine of their own and compare."""
    from workbench.llm import LLM

    comparison = Comparison()
    with LLM(DEFAULT_MODEL, **setting.engine_fields(cases)) as llm:
        llm.service.subscribe(comparison.count_swapped)

        def continue_from(context: Sequence[int], num_tokens: int) -> Sequence[int]:
            return _generate(llm, [context], num_tokens, comparison)[0]

        batches = [cases] if setting.is_batched else [[case] for case in cases]
        for batch in batches * (2 if setting.has_prefix_cache else 1):
            length = max(len(case.answer.token_ids) for case in batch)
            answers = _generate(llm, [case.prompt_token_ids for case in batch], length, comparison)
            for case, answer in zip(batch, answers, strict=True):
                compare(case, answer, continue_from, comparison)
    return comparison


def _generate(llm: LLM, prompts: Sequence[Sequence[int]], max_tokens: int, comparison: Comparison) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    outputs = llm.generate([list(prompt) for prompt in prompts], params)
    comparison.num_preemptions += sum(output.metrics.num_preemptions for output in outputs)
    comparison.num_cached_tokens += sum(output.metrics.num_cached_tokens for output in outputs)
    return [list(output.outputs[0].token_ids) for output in outputs]


def compare(case: GoldenCase, answer: Sequence[int], continue_from: Continue, comparison: Comparison) -> None:
    """Compare one answer with the reference's and add the outcome to `comparison`.

    After an accepted tie the rest is generated again from the reference's own tokens. After a
    mismatch nothing more is compared: what follows has another context.
    """
    expected: ReferenceAnswer = case.answer
    length = len(expected.token_ids)
    actual = list(answer)
    for position, token in enumerate(expected.token_ids):
        comparison.num_positions += 1
        got = actual[position] if position < len(actual) else None
        if got == token:
            continue
        if got not in expected.ties.get(position, ()):
            comparison.mismatches.append(f"{case.name}@{position}: {got} instead of {token}")
            return
        comparison.ties.append(f"{case.name}@{position}")
        forced = expected.token_ids[: position + 1]
        rest = length - len(forced)
        actual = [*forced, *(continue_from([*case.prompt_token_ids, *forced], rest) if rest else ())]


def _report(
    results: dict[Setting, Comparison],
    searches: dict[str, list[str]],
    golden: Golden,
    source: str,
    drafted: dict[SpeculativeSetting, SpeculativeComparison],
) -> Report:
    num_positions = sum(result.num_positions for result in results.values())
    num_ties = sum(len(result.ties) for result in results.values())
    num_mismatches = sum(len(result.mismatches) for result in results.values())
    wrong_searches = [name for name, found in searches.items() if found]
    failures = []
    if num_mismatches:
        failures.append(f"{num_mismatches} answers differ from the reference")
    if wrong_searches:
        failures.append(f"beam searches differ from the reference: {', '.join(wrong_searches)}")
    if num_ties > MAX_TIE_FRACTION * num_positions:
        failures.append(f"{num_ties} ties among {num_positions} tokens are more than {MAX_TIE_FRACTION:.0%}")
    failures += [f"{line}, so these showed nothing" for line in _idle(results)]
    failures += failures_of(drafted)
    figures = {
        "settings_count": len(results),
        "prompts_count": len(golden.cases),
        "tokens_compared_count": num_positions,
        "mismatches_count": num_mismatches,
        "ties_count": num_ties,
        "ties_percent": 100 * num_ties / num_positions if num_positions else 0.0,
        "preemptions_count": sum(result.num_preemptions for result in results.values()),
        "swapped_blocks_count": sum(result.num_swapped_blocks for result in results.values()),
        "beam_searches_count": len(searches),
        "beam_mismatches_count": len(wrong_searches),
        **figures_of(drafted),
    }
    settings = {
        "model": DEFAULT_MODEL,
        "model_sha256": golden.model_sha256,
        "reference": f"transformers {golden.made_with['transformers']} generate, float32, {source}",
        "new_tokens": NUM_NEW_TOKENS,
        "prompt_tokens": [len(case.prompt_token_ids) for case in golden.cases],
        "combinations": list(map(str, results)),
        "beam_searches": list(searches),
        "drafts": list(map(str, drafted)),
    }
    return Report(figures, settings, describe_environment(), "; ".join(failures) or None)


def _idle(results: dict[Setting, Comparison]) -> Iterator[str]:
    """Say where what a setting is there for did not happen."""
    preempting = {setting: result for setting, result in results.items() if setting.is_preempting}
    swapping = {setting: result for setting, result in preempting.items() if setting.preemption_mode == "swap"}
    unpreempted = [str(setting) for setting, result in preempting.items() if not result.num_preemptions]
    unswapped = [str(setting) for setting, result in swapping.items() if not result.num_swapped_blocks]
    if unpreempted:
        yield f"nothing was preempted in {', '.join(unpreempted)}"
    if unswapped:
        yield f"nothing was swapped in {', '.join(unswapped)}"
