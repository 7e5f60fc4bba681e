"""What prefix caching saves: 16 requests that begin with the same system prompt of 600 tokens, with and without.

Both run in one engine, in turns, the cache switched between two steps. Each round has a system prompt of
its own, so that nothing is left over from the round before: the requests share only with each other. All
are submitted at once; those that are admitted after the first find its blocks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from workbench.bench.command_line import add_engine_arguments, as_settings, engine_config, log
from workbench.bench.prompts import english_text
from workbench.bench.report import Report, describe_environment
from workbench.bench.throughput import run_engine, start_service
from workbench.bench.workloads import QUESTIONS, WorkItem
from workbench.engine.service import EngineService
from workbench.errors import ConfigurationError
from workbench.models.tokenizer import Tokenizer
from workbench.telemetry.records import StepRecord

NUM_REQUESTS: Final = 16
SYSTEM_TOKENS: Final = 600
TOKENS_EACH: Final = 32


@dataclass(frozen=True)
class Round:
    """One run of the workload."""

    num_prefill_tokens: int
    """Prompt tokens that were computed."""
    ttft_s: tuple[float, ...]
    """Of each request."""
    duration_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--rounds", type=int, default=5, help="runs with and without, in turns (default: 5)")
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS, help=f"requests (default: {NUM_REQUESTS})")
    parser.add_argument("--max-tokens", type=int, default=TOKENS_EACH, help=f"output of each (default: {TOKENS_EACH})")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> Report:
    """Measure both in turns.

    Raises:
        ConfigurationError: an option is out of range.
        EngineError: a request did not finish.
    """
    if args.rounds < 1 or args.requests < 2 or args.max_tokens < 1:
        raise ConfigurationError("--rounds and --max-tokens must be at least 1, --requests at least 2")
    config = engine_config(args)
    service = start_service(config)
    try:
        rounds: dict[bool, list[Round]] = {False: [], True: []}
        for number in range(args.rounds + 1):  # the first is to warm up
            for is_cached, found in rounds.items():
                items = workload(service.tokenizer, args.requests, args.max_tokens, seed=2 * number + is_cached)
                one = run_round(service, items, is_cached)
                if number:
                    found.append(one)
                    log(
                        f"round {number}/{args.rounds}, cache {'on' if is_cached else 'off'}: {one.num_prefill_tokens} "
                        f"prompt tokens computed, TTFT p50 {1000 * statistics.median(one.ttft_s):.0f} ms"
                    )
        status = service.status
    finally:
        service.shutdown()
    settings = {
        "requests": args.requests,
        "system_prompt_tokens": SYSTEM_TOKENS,
        "output_tokens_each": args.max_tokens,
        "rounds": args.rounds,
        "engine": as_settings(config),
        "backend": status.backend,
    }
    return Report(figures(rounds[False], rounds[True]), settings, describe_environment())


def workload(tokenizer: Tokenizer, num_requests: int, max_tokens: int, seed: int) -> list[WorkItem]:
    """Return requests whose first 600 tokens are the same, and differ between seeds from the first block on."""
    text = f"These are the house rules, edition {seed}. {english_text()}"
    system = tokenizer.encode(text)[:SYSTEM_TOKENS]
    questions = [tokenizer.encode(f"\n\n{n}. {QUESTIONS[n % len(QUESTIONS)]}") for n in range(num_requests)]
    return [WorkItem((*system, *question), max_tokens) for question in questions]


def run_round(service: EngineService, items: Sequence[WorkItem], is_cached: bool) -> Round:
    """Run all items together."""
    service.set_limits(enable_prefix_caching=is_cached)
    computed: list[int] = []
    unsubscribe = service.subscribe(_count_into(computed))
    started_s = time.perf_counter()
    try:
        times = run_engine(service, items)
    finally:
        unsubscribe()
    return Round(sum(computed), tuple(each.ttft_s for each in times), time.perf_counter() - started_s)


def _count_into(computed: list[int]) -> Callable[[StepRecord], None]:
    def on_record(record: StepRecord) -> None:
        computed.append(record.num_prefill_tokens)

    return on_record


def figures(without: Sequence[Round], with_cache: Sequence[Round]) -> dict[str, float]:
    """Return what was saved; ratios are taken round by round, without over with, so that more is better."""
    saved = [1 - b.num_prefill_tokens / a.num_prefill_tokens for a, b in zip(without, with_cache, strict=True)]
    ttft = [
        (statistics.median(a.ttft_s), statistics.median(b.ttft_s)) for a, b in zip(without, with_cache, strict=True)
    ]
    ratios = [a / b for a, b in ttft]
    return {
        "prefill_tokens_without": statistics.median(each.num_prefill_tokens for each in without),
        "prefill_tokens_with": statistics.median(each.num_prefill_tokens for each in with_cache),
        "prefill_tokens_saved_fraction": statistics.median(saved),
        "ttft_p50_without_ms": 1000 * statistics.median(a for a, _ in ttft),
        "ttft_p50_with_ms": 1000 * statistics.median(b for _, b in ttft),
        "ttft_p50_ratio": statistics.median(ratios),
        "ttft_p50_ratio_min": min(ratios),
        "ttft_p50_ratio_max": max(ratios),
        "duration_ratio": statistics.median(
            a.duration_s / b.duration_s for a, b in zip(without, with_cache, strict=True)
        ),
    }
