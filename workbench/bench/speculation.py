"""What drafting brings: accepted tokens, and the time of greedy answers with and without, on 24 mixed prompts.

Plain and drafting runs of one engine alternate prompt by prompt (A B C, then C B A), so that all see the same
machine. Speedups compare the time from an answer's first token to its last at batch 1. Adaptive ratios compare the
time from submission to the last token over all prompts, as many together as the batch size says.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Final

from workbench.bench.command_line import add_engine_arguments, as_settings, engine_config, log
from workbench.bench.report import Report, describe_environment
from workbench.bench.speculation_figures import adaptive_figures, method_figures
from workbench.bench.speculation_prompts import SpeculationPrompt, speculation_prompts
from workbench.bench.speculation_runs import Answered, answer_together
from workbench.bench.throughput import start_service
from workbench.config import EngineConfig
from workbench.engine.service import EngineService
from workbench.errors import ConfigurationError
from workbench.speculation_params import MAX_SPECULATIVE_TOKENS, NO_SPECULATION, SpeculationParams

MEASURED: Final = ("ngram", "eagle", "hybrid", "draft_model")
ADAPTING: Final = ("hybrid", "eagle", "ngram")
"""The first of these that is available adapts."""
BATCH_SIZES: Final = (1, 8, 24)
PROMPTS_PER_KIND: Final = 6
QUICK_TOKENS: Final = 12
WARM_UP_TOKENS: Final = 8
CONFIDENCE: Final = SpeculationParams().draft_confidence

Round = dict[str, list[Answered]]
"""By name of what ran, its answers in the order of the prompts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--rounds", type=int, default=5, help="runs of each, in turns (default: 5)")
    parser.add_argument("--max-tokens", type=int, default=128, help="most tokens of an answer (default: 128)")
    parser.add_argument("--k", type=int, default=4, help="tokens drafted for a step (default: 4)")
    parser.add_argument(
        "--draft-confidence",
        type=float,
        default=CONFIDENCE,
        help=f"where drafts by a head or a model end (default: {CONFIDENCE})",
    )
    parser.add_argument("--draft", metavar="MODEL", help="a draft model, to measure it too")
    parser.add_argument("--quick", action="store_true", help="one prompt of each kind, short, once: to see it work")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> Report:
    """Measure every method that the engine offers.

    Raises:
        ConfigurationError, InvalidSpeculationParamsError: an option is out of range.
        EngineError: a request did not finish.
    """
    if args.rounds < 1 or args.max_tokens < 2 or not 1 <= args.k <= MAX_SPECULATIVE_TOKENS:
        raise ConfigurationError(
            f"--rounds must be at least 1, --max-tokens at least 2, --k from 1 to {MAX_SPECULATIVE_TOKENS}"
        )
    SpeculationParams(draft_confidence=args.draft_confidence)  # refused before the engine is loaded
    rounds, max_tokens, per_kind = args.rounds, args.max_tokens, PROMPTS_PER_KIND
    if args.quick:
        rounds, max_tokens, per_kind = 1, min(max_tokens, QUICK_TOKENS), 1
    config = _with_draft(engine_config(args), args.draft)
    service = start_service(config)
    try:
        reasons = service.status.speculation
        prompts = speculation_prompts(service.tokenizer, per_kind)
        ways = _ways(reasons, args.k, args.draft_confidence)
        fixed = measure_alone(service, prompts, ways, max_tokens, rounds)
        adaptive = SpeculationParams(
            method=_adapting(reasons),
            num_speculative_tokens=args.k,
            speculative_adaptive=True,
            draft_confidence=args.draft_confidence,
        )
        together = {
            size: measure_together(service, prompts, adaptive, max_tokens, rounds, size) for size in BATCH_SIZES
        }
        backend = service.status.backend
    finally:
        service.shutdown()
    figures: dict[str, float | None] = {}
    for method in MEASURED:
        figures |= method_figures(method, fixed if method in ways else None, prompts, args.k)
    figures |= adaptive_figures(together)
    differing = _differing([*fixed, *(one for found in together.values() for one in found)])
    settings = {
        "prompts": [prompt.name for prompt in prompts],
        "prompt_tokens": [len(prompt.token_ids) for prompt in prompts],
        "output_tokens_most": max_tokens,
        "output_tokens": [len(answer.token_ids) for answer in fixed[0]["none"]],
        "sampling": "greedy, to the end of the answer",
        "rounds": rounds,
        "num_speculative_tokens": args.k,
        "draft_confidence": args.draft_confidence,
        "adaptive_method": adaptive.method,
        "batch_sizes": [min(size, len(prompts)) for size in BATCH_SIZES],
        "unavailable": {method: reasons[method] for method in MEASURED if reasons[method]},
        "preset": args.preset,
        "engine": as_settings(config),
        "backend": backend,
    }
    return Report(figures, settings, describe_environment(), differing)


def _with_draft(config: EngineConfig, draft: str | None) -> EngineConfig:
    return config if draft is None else EngineConfig.from_mapping({**as_settings(config), "draft_model": draft})


def _ways(reasons: dict[str, str], count: int, confidence: float) -> dict[str, SpeculationParams]:
    """Plain decoding, and each method that is available with a fixed number of tokens."""
    methods = [method for method in MEASURED if not reasons[method]]
    return {"none": NO_SPECULATION} | {
        method: SpeculationParams(method=method, num_speculative_tokens=count, draft_confidence=confidence)
        for method in methods
    }


def _adapting(reasons: dict[str, str]) -> str:
    return next(method for method in ADAPTING if not reasons[method])


def measure_alone(
    service: EngineService,
    prompts: Sequence[SpeculationPrompt],
    ways: dict[str, SpeculationParams],
    max_tokens: int,
    rounds: int,
) -> list[Round]:
    """Answer each prompt alone in every way, one way after the other. The first round, a short one, is not kept."""
    found: list[Round] = []
    for number in range(rounds + 1):
        one: Round = {name: [] for name in ways}
        names = list(ways) if number % 2 else list(ways)[::-1]
        for prompt in prompts:
            for name in names:
                length = max_tokens if number else min(WARM_UP_TOKENS, max_tokens)
                one[name] += answer_together(service, [prompt.token_ids], ways[name], length)
        if number:
            found.append(one)
            log(f"round {number}/{rounds}, alone: {_rates(one)}")
    return found


def measure_together(
    service: EngineService,
    prompts: Sequence[SpeculationPrompt],
    adaptive: SpeculationParams,
    max_tokens: int,
    rounds: int,
    batch_size: int,
) -> list[Round]:
    """Answer all prompts, so many together, plainly and adaptively in turns. The first round is not kept."""
    ways = {"none": NO_SPECULATION, "adaptive": adaptive}
    found: list[Round] = []
    for number in range(rounds + 1):
        one: Round = {name: [] for name in ways}
        names = list(ways) if number % 2 else list(ways)[::-1]
        for start in range(0, len(prompts), batch_size):
            group = [prompt.token_ids for prompt in prompts[start : start + batch_size]]
            for name in names:
                length = max_tokens if number else min(WARM_UP_TOKENS, max_tokens)
                one[name] += answer_together(service, group, ways[name], length)
        if number:
            found.append(one)
            log(f"round {number}/{rounds}, {batch_size} together: {_rates(one)}")
    return found


def _rates(one: Round) -> str:
    medians = {name: statistics.median(each.decode_s for each in answers) for name, answers in one.items()}
    return ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in medians.items())


def _differing(rounds: Sequence[Round]) -> str | None:
    """Say which ways of drafting changed an answer; none may."""
    wrong = {
        name
        for one in rounds
        for name, answers in one.items()
        if [each.token_ids for each in answers] != [each.token_ids for each in one["none"]]
    }
    return f"answers differ from plain decoding: {', '.join(sorted(wrong))}" if wrong else None
