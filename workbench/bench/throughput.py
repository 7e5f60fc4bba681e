"""Tokens per second and latencies of many requests at once, or of one alone.

The engine takes all requests at once. A peer, where one is asked for, runs the same token ids in a
process of its own, in turns with the engine (A B A B …), so that both see the same machine.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from workbench.bench.command_line import add_engine_arguments, as_settings, engine_config, log
from workbench.bench.peer_process import PeerProcess
from workbench.bench.report import Report, describe_environment
from workbench.bench.timings import RequestTimes, summarise
from workbench.bench.workloads import WorkItem, chat_workload
from workbench.config import EngineConfig
from workbench.engine.messages import Event, RequestFinished, TokenEvent
from workbench.errors import ConfigurationError, EngineError
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import FinishReason

if TYPE_CHECKING:
    from workbench.engine.service import EngineService

Engines = dict[str, Callable[[Sequence[WorkItem]], list[RequestTimes]]]
"""How to run a workload on each engine, by name."""

PEERS: Final = ("transformers",)
WARM_UP_REQUESTS: Final = 8
WARM_UP_TOKENS: Final = 4
REQUEST_TIMEOUT_S: Final = 1800


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--requests", type=int, default=24, help="requests submitted together (default: 24)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts (default: 0)")
    parser.add_argument("--against", choices=PEERS, help="run this peer too, in turns with the engine")
    parser.add_argument(
        "--rounds", type=int, help="runs of each engine; figures are medians (default: 1, 3 with --against)"
    )
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> Report:
    """Measure the engine, and the peer if asked for.

    Raises:
        ConfigurationError: an option is out of range.
        EngineError: a request did not finish.
    """
    for name in ("requests", "rounds"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ConfigurationError(f"--{name} {getattr(args, name)} must be at least 1")
    rounds = args.rounds or (3 if args.against else 1)
    config = engine_config(args)
    service = start_service(config)
    engines: Engines = {"workbench": lambda items: run_engine(service, items)}
    peer = None
    try:
        workload = chat_workload(args.requests, args.seed, service.tokenizer)
        if args.against:
            log(f"loading the same file with {args.against}")
            peer = start_transformers(config)
            engines[args.against] = peer.run
        measured = take_turns(engines, workload, rounds)
        settings = {
            "requests": args.requests,
            "prompt_tokens": sum(len(item.prompt_token_ids) for item in workload),
            "output_tokens": sum(item.max_tokens for item in workload),
            "seed": args.seed,
            "sampling": "greedy, end of text ignored",
            "rounds": rounds,
            "against": peer and {"name": peer.name, **peer.description},
            "preset": args.preset,
            "engine": as_settings(config),
            "backend": service.status.backend,
            "weights": f"{service.status.source_format} computed in {service.status.dtype}",
        }
    finally:
        service.shutdown()
        if peer is not None:
            peer.close()
    return Report(_figures(measured, args.against), settings, describe_environment())


def start_service(config: EngineConfig) -> EngineService:
    """Return a loaded engine. Imports torch, so it must come after `prepare_process`."""
    from workbench.engine.service import EngineService

    log(f"loading {config.model}")
    service = EngineService(config)
    service.start()
    try:
        service.wait_ready()
    except BaseException:
        service.shutdown()
        raise
    return service


def start_transformers(config: EngineConfig) -> PeerProcess:
    """Start transformers on the engine's model and number of threads."""
    from workbench.models.default_model import resolve_model_path

    num_threads = config.kernel_threads
    return PeerProcess("transformers", [str(resolve_model_path(config.model)), str(num_threads)])


def take_turns(engines: Engines, workload: list[WorkItem], rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return each engine's figures of every round, after one short run of each to warm up."""
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for run_items in engines.values():
        run_items([WorkItem(item.prompt_token_ids, WARM_UP_TOKENS) for item in workload[:WARM_UP_REQUESTS]])
    for number in range(1, rounds + 1):
        for name, run_items in engines.items():
            figures = summarise(run_items(workload))
            measured[name].append(figures)
            speed = figures[speed_name(figures)]
            log(f"round {number}/{rounds}: {name} {speed:.1f} tok/s in {figures['duration_s']:.1f} s")
    return measured


def speed_name(figures: dict[str, float]) -> str:
    """Return the figure that engines are compared by: of a lone request, its decode speed."""
    return "decode_tok_per_s" if "decode_tok_per_s" in figures else "output_tok_per_s"


def _figures(measured: dict[str, list[dict[str, float]]], peer: str | None) -> dict[str, float]:
    """Return medians over the rounds, and ratios taken round by round."""
    ours = measured["workbench"]
    figures = {name: statistics.median(each[name] for each in ours) for name in ours[0]}
    if peer is None:
        return figures
    theirs = measured[peer]
    figures |= {f"{peer}_{name}": statistics.median(each[name] for each in theirs) for name in theirs[0]}
    name = speed_name(figures)
    ratios = [a[name] / b[name] for a, b in zip(ours, theirs, strict=True)]
    figures[f"ratio_to_{peer}"] = statistics.median(ratios)
    figures[f"ratio_to_{peer}_min"] = min(ratios)
    figures[f"ratio_to_{peer}_max"] = max(ratios)
    return figures


def run_engine(service: EngineService, items: Sequence[WorkItem]) -> list[RequestTimes]:
    """Submit all items at once and return when their tokens came.

    Raises:
        EngineError: a request ended before its last token.
    """
    deliveries: list[list[tuple[float, int]]] = [[] for _ in items]
    finished: queue.SimpleQueue[tuple[int, RequestFinished]] = queue.SimpleQueue()
    started_s = time.perf_counter()

    def listener(index: int) -> Callable[[Event], None]:
        def on_event(event: Event) -> None:
            if isinstance(event, TokenEvent):
                deliveries[index].append((time.perf_counter() - started_s, len(event.token_ids)))
            else:
                finished.put((index, event))

        return on_event

    for index, item in enumerate(items):
        params = SamplingParams(temperature=0, max_tokens=item.max_tokens, ignore_eos=True)
        service.submit(item.prompt_token_ids, params, listener(index))
    for _ in items:
        index, event = finished.get(timeout=REQUEST_TIMEOUT_S)
        if event.finish_reason is not FinishReason.LENGTH:
            raise EngineError(f"request {index} ended early, {event.finish_reason}: {event.error}")
    return [RequestTimes(tuple(each)) for each in deliveries]
