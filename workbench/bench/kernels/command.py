"""Each kernel over the model's shapes, against what the machine can do and against torch.

Everything, ours and torch's, runs in one thread of this process: libgomp stops spinning where more
than one thread runs parallel regions, and all figures would be those of another machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import psutil

from workbench.bench.command_line import add_engine_arguments, as_settings, engine_config, log
from workbench.bench.machine import Machine, best_of
from workbench.bench.report import Report, describe_environment

if TYPE_CHECKING:
    from workbench.bench.kernels.cases import Linear
    from workbench.bench.kernels.step import StepCost
    from workbench.bench.kernels.timing import Case, Timing


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    linear_rows: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 64, 128, 512)
    elementwise_rows: tuple[int, ...] = (1, 8, 24, 64, 512)
    contexts: tuple[int, ...] = (128, 512, 2048, 4096)
    requests: tuple[int, ...] = (1, 8, 24)
    prefill: int = 256
    pool_bytes: int = 256 << 20
    """Bytes of copies that weights and KV are taken from in turn, well beyond the last cache."""
    repetitions: int = 7
    least_s: float = 0.03
    """How long one repetition runs."""
    steps: int = 64
    probe_bytes: int = 512 << 20
    matrix_size: int = 2048


QUICK: Final = Plan(
    linear_rows=(1, 8, 64),
    elementwise_rows=(1, 8),
    contexts=(128,),
    requests=(1, 8),
    prefill=32,
    pool_bytes=64 << 20,
    repetitions=2,
    least_s=0.0,
    steps=4,
    probe_bytes=64 << 20,
    matrix_size=512,
)
"""To see that everything runs; its figures mean nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--quick", action="store_true", help="a few shapes, briefly: shows that it runs, not how fast")
    parser.add_argument("--only", metavar="TEXT", help="only cases whose name contains this, for example linear_down")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> Report:
    """Measure all kernels and one step of the engine."""
    # Inside, since they bring torch and numba, which must come after `prepare_process`; loading first: numba's
    # OpenMP runtime before torch's.
    from workbench.engine.loading import choose_backend, engine_thread_mode, set_threads

    # isort: split
    from workbench.bench.kernels import cases
    from workbench.bench.kernels.probe import probe
    from workbench.bench.kernels.step import TimedOps, measure_step
    from workbench.engine.core import EngineCore
    from workbench.models.loader import load_model

    plan = QUICK if args.quick else Plan()
    config = engine_config(args)
    num_threads = config.kernel_threads
    with engine_thread_mode():
        ops, _ = choose_backend(config)
        set_threads(ops, config)
        ops.warm_up()
        log(f"loading {config.model}")
        timed = TimedOps(ops)
        loaded = load_model(config.model, cast(Any, timed), lambda progress: None)
        model = loaded.config
        probes = [probe(num_threads, plan.probe_bytes, plan.matrix_size)]
        timings = time_all(cases.linear_cases(ops, model, plan.linear_rows, plan.pool_bytes), plan, args.only)
        probes.append(probe(num_threads, plan.probe_bytes, plan.matrix_size))
        timings |= time_all(cases.elementwise_cases(ops, model, plan.elementwise_rows), plan, args.only)
        attention = cases.attention_cases(ops, model, plan.contexts, plan.requests, plan.prefill, plan.pool_bytes)
        timings |= time_all(attention, plan, args.only)
        log("decode steps of the engine")
        cost = measure_step(EngineCore(config, loaded), timed, plan.steps)
        probes.append(probe(num_threads, plan.probe_bytes, plan.matrix_size))
    machine = best_of(probes)
    figures = {
        **machine_figures(probes),
        **linear_totals(timings, cases.linears(model), plan.linear_rows, machine),
        **step_figures(cost, sum(each.weight_bytes * each.per_pass for each in cases.linears(model)), machine),
        **case_figures(timings, machine),
    }
    settings = {
        **asdict(plan),
        "only": args.only,
        "threads": num_threads,
        "threads_of_the_process": psutil.Process().num_threads(),
        "engine": as_settings(config),
        "backend": ops.describe(),
        "model": model.name,
    }
    return Report(figures, settings, describe_environment())


Timings = dict[str, "tuple[Case, Timing]"]


def time_all(cases: Iterable[Case], plan: Plan, only: str | None) -> Timings:
    """Time the cases whose name contains `only`, all when None."""
    from workbench.bench.kernels.timing import time_case

    timings: Timings = {}
    for case in cases:
        if only is None or only in case.name:
            log(case.name)
            timings[case.name] = (case, time_case(case, plan.repetitions, plan.least_s))
    return timings


def machine_figures(probes: Sequence[Machine]) -> dict[str, float]:
    """Return the machine's rates, the best of all probes, and the worst, which tells how much it was disturbed."""
    bandwidths = [each.bandwidth_bytes_per_s / 1e9 for each in probes]
    gemms = [each.gemm_flop_per_s / 1e9 for each in probes]
    return {
        "bandwidth_gb_per_s": max(bandwidths),
        "bandwidth_gb_per_s_min": min(bandwidths),
        "gemm_gflop_per_s": max(gemms),
        "gemm_gflop_per_s_min": min(gemms),
    }


def linear_totals(
    timings: Mapping[str, tuple[Case, Timing]], linears: Sequence[Linear], rows: Sequence[int], machine: Machine
) -> dict[str, float]:
    """Return figures of all linears of one forward pass together, head included, for each number of rows.

    A number of rows for which not every linear was timed is left out. The bandwidth fraction counts
    weight bytes only.
    """
    from workbench.bench.kernels.cases import linear_name

    figures: dict[str, float] = {}
    for count in rows:
        names = [linear_name(linear, count) for linear in linears]
        if not all(name in timings for name in names):
            continue
        parts = [(linear, timings[name][1]) for linear, name in zip(linears, names, strict=True)]
        ours_s = sum(linear.per_pass * timing.ours_median_s for linear, timing in parts)
        torch_s = sum(linear.per_pass * timing.torch_median_s for linear, timing in parts)
        num_bytes = sum(linear.per_pass * linear.weight_bytes for linear in linears)
        flops = sum(linear.per_pass * linear.flops(count) for linear in linears)
        prefix = f"linear_rows{count}"
        figures[f"{prefix}_us"] = 1e6 * ours_s
        figures[f"{prefix}_torch_us"] = 1e6 * torch_s
        figures[f"{prefix}_ratio_to_torch"] = torch_s / ours_s
        figures[f"{prefix}_bandwidth_fraction"] = num_bytes / ours_s / machine.bandwidth_bytes_per_s
        figures[f"{prefix}_gemm_fraction"] = flops / ours_s / machine.gemm_flop_per_s
    return figures


def case_figures(timings: Mapping[str, tuple[Case, Timing]], machine: Machine) -> dict[str, float]:
    """Return for each case its times, its ratio to torch and which part of its time the machine's limit explains."""
    figures: dict[str, float] = {}
    for name, (case, timing) in timings.items():
        figures[f"{name}_us"] = 1e6 * timing.ours_median_s
        figures[f"{name}_us_min"] = 1e6 * min(timing.ours_s)
        figures[f"{name}_us_max"] = 1e6 * max(timing.ours_s)
        figures[f"{name}_torch_us"] = 1e6 * timing.torch_median_s
        figures[f"{name}_ratio_to_torch"] = timing.ratio_to_torch
        figures[f"{name}_floor_fraction"] = machine.floor_s(case.num_bytes, case.flops) / timing.ours_median_s
    return figures


def step_figures(cost: StepCost, weight_bytes: int, machine: Machine) -> dict[str, float]:
    """Return the parts of a decode step of one request."""
    figures = {
        "step_ms": 1000 * cost.step_s,
        "step_kernels_ms": 1000 * cost.kernels_s,
        "step_overhead_ms": 1000 * cost.overhead_s,
        "step_op_calls": cost.calls,
        "step_weight_floor_ms": 1000 * weight_bytes / machine.bandwidth_bytes_per_s,
    }
    return figures | {f"step_{name}_ms": 1000 * seconds for name, seconds in cost.kernel_s.items()}
