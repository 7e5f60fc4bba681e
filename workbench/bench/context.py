"""What a long context costs a decoding request: the gap between tokens at 500 and at 4,000 tokens.

The engine itself runs one request at each length. The floor is the time to read the keys and values
of the 3,500 tokens between them once, at the bandwidth measured before and after in a process apart.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Final

from workbench.bench.command_line import add_engine_arguments, as_settings, engine_config, log
from workbench.bench.machine import Machine, best_of, probe_apart
from workbench.bench.prompts import english_text
from workbench.bench.report import Report, describe_environment
from workbench.bench.throughput import run_engine, start_service
from workbench.bench.timings import RequestTimes
from workbench.bench.workloads import WorkItem
from workbench.errors import ConfigurationError

SHORT: Final = 500
LONG: Final = 4000
TOKENS_EACH: Final = 64

Runner = Callable[[Sequence[WorkItem]], list[RequestTimes]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--rounds", type=int, default=3, help="runs at each length, in turns (default: 3)")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> Report:
    """Measure both lengths in turns.

    Raises:
        ConfigurationError: an option is out of range.
        EngineError: a request did not finish.
        RequestRejectedError: the engine's longest context is too short.
    """
    if args.rounds < 1:
        raise ConfigurationError(f"--rounds {args.rounds} must be at least 1")
    config = engine_config(args)
    num_threads = config.kernel_threads
    log("measuring the machine")
    probes = [probe_apart(num_threads)]
    service = start_service(config)
    try:
        ids = service.tokenizer.encode(english_text())
        itls = measure(lambda items: run_engine(service, items), ids, args.rounds)
        status = service.status
    finally:
        service.shutdown()
    probes.append(probe_apart(num_threads))
    settings = {
        "rounds": args.rounds,
        "tokens_each": TOKENS_EACH,
        "engine": as_settings(config),
        "backend": status.backend,
        "weights": f"{status.source_format} computed in {status.dtype}",
    }
    figures = context_figures(itls, status.block_bytes / status.block_size, best_of(probes))
    return Report(figures, settings, describe_environment())


def measure(run_items: Runner, token_ids: Sequence[int], rounds: int) -> dict[int, list[float]]:
    """Return context length → seconds between tokens, the median of each round.

    The measured tokens lie around the named length: a prompt half of them shorter, then all of them.
    """
    itls: dict[int, list[float]] = {SHORT: [], LONG: []}
    for number in range(rounds + 1):  # the first is to warm up
        for length, found in itls.items():
            items = [WorkItem(prompt_of(token_ids, length - TOKENS_EACH // 2), TOKENS_EACH)]
            itl_s = statistics.median(run_items(items)[0].itl_s)
            if number > 0:
                found.append(itl_s)
                log(f"round {number}/{rounds}: {1000 * itl_s:.1f} ms between tokens at {length} of context")
    return itls


def prompt_of(token_ids: Sequence[int], length: int) -> tuple[int, ...]:
    """Return a prompt of that length, the text over and over."""
    repeats = -(-length // len(token_ids))
    return (tuple(token_ids) * repeats)[:length]


def context_figures(itls: dict[int, list[float]], token_bytes: float, machine: Machine) -> dict[str, float]:
    """Return the gaps, their ratio, and the ratio without what reading the extra keys and values takes at least."""
    short_ms, long_ms = (1000 * statistics.median(itls[length]) for length in (SHORT, LONG))
    floor_ms = 1000 * (LONG - SHORT) * token_bytes / machine.bandwidth_bytes_per_s
    figures = {
        f"itl_{SHORT}_ms": short_ms,
        f"itl_{LONG}_ms": long_ms,
        "kv_read_floor_ms": floor_ms,
        "ratio": long_ms / short_ms,
        "ratio_without_kv_read": (long_ms - floor_ms) / short_ms,
        "bandwidth_gb_per_s": machine.bandwidth_bytes_per_s / 1e9,
    }
    for length, values in itls.items():
        figures[f"itl_{length}_ms_min"] = 1000 * min(values)
        figures[f"itl_{length}_ms_max"] = 1000 * max(values)
    return figures
