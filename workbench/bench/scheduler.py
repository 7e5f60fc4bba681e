"""What scheduling a step costs with 256 requests running and 1,000 waiting, and what an allocation costs.

Scheduler and memory manager run alone, without a model: every request samples the same token. The
waiting ones have prompts that begin alike, so the head is looked up in the prefix cache in every step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Final

from workbench.bench.command_line import log
from workbench.bench.report import Report, describe_environment
from workbench.config import ADMISSION_POLICIES, SCHEDULING_POLICIES
from workbench.engine.block_pool import BlockPool
from workbench.engine.kv_cache_manager import KVCacheManager
from workbench.engine.policies import POLICIES
from workbench.engine.policies.admission import ADMISSIONS
from workbench.engine.request import Request
from workbench.engine.scheduler import Scheduler
from workbench.engine.scheduler_output import ModelRunnerOutput
from workbench.errors import ConfigurationError
from workbench.sampling_params import SamplingParams

BLOCK_SIZE: Final = 16
PROMPT_TOKENS: Final = 400
POOLS: Final = (1_024, 65_536)
ALLOCATIONS: Final = 200
BLOCKS_EACH: Final = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--running", type=int, default=256, help="requests that run (default: 256)")
    parser.add_argument("--waiting", type=int, default=1000, help="requests that wait (default: 1000)")
    parser.add_argument("--steps", type=int, default=200, help="decode steps measured (default: 200)")
    parser.add_argument("--policy", choices=SCHEDULING_POLICIES, default="fcfs")
    parser.add_argument("--admission", choices=ADMISSION_POLICIES, default="strict")


def run(args: argparse.Namespace) -> Report:
    """Measure.

    Raises:
        ConfigurationError: an option is out of range.
    """
    if min(args.running, args.steps) < 1 or args.waiting < 0:
        raise ConfigurationError("--running and --steps must be at least 1, --waiting at least 0")
    log(f"{args.steps} steps with {args.running} running and {args.waiting} waiting")
    schedule_s, update_s = time_steps(args.running, args.waiting, args.steps, args.policy, args.admission)
    figures = {
        "schedule_p50_ms": 1000 * statistics.median(schedule_s),
        "schedule_p95_ms": 1000 * statistics.quantiles(schedule_s, n=20)[-1],
        "update_p50_ms": 1000 * statistics.median(update_s),
    }
    for num_blocks in POOLS:
        figures[f"allocate_pool{num_blocks}_us"] = 1e6 * time_allocation(num_blocks)
    return Report(figures, vars(args) | {"block_size": BLOCK_SIZE}, describe_environment())


def time_steps(
    num_running: int, num_waiting: int, num_steps: int, policy: str, admission: str
) -> tuple[list[float], list[float]]:
    """Return the seconds of each step's schedule and of its update, once all that can run do so."""
    tokens = PROMPT_TOKENS + num_steps + 8
    pool = BlockPool(num_running * -(-tokens // BLOCK_SIZE) + 1, BLOCK_SIZE)
    scheduler = Scheduler(
        KVCacheManager(pool, enable_prefix_caching=True),
        POLICIES[policy](),
        ADMISSIONS[admission](),
        max_num_batched_tokens=num_running * PROMPT_TOKENS,
        max_num_seqs=num_running + num_waiting,
        max_model_len=2 * tokens,
    )
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    shared = list(range(PROMPT_TOKENS // 2))
    for number in range(num_running + num_waiting):
        # Those that run have nothing in common; those that wait begin alike and do not fit any more.
        own = [number] * PROMPT_TOKENS
        prompt = own if number < num_running else [*shared, *own]
        scheduler.add(Request(f"r{number}", prompt, params, arrival_index=number))
    schedule_s, update_s = [], []
    for step in range(num_steps + 2):
        _leave_what_is_needed(scheduler)
        started_s = time.perf_counter()
        plan = scheduler.schedule(step)
        scheduled_s = time.perf_counter()
        output = ModelRunnerOutput({item.request_id: (7,) for item in plan.scheduled if item.samples})
        executed_s = time.perf_counter()
        scheduler.update_from_output(plan, output)
        ended_s = time.perf_counter()
        if step >= 2:  # the first ones admit and prefill
            assert len(scheduler.running) == num_running, "those that wait are to find no room"
            schedule_s.append(scheduled_s - started_s)
            update_s.append(ended_s - executed_s)
    return schedule_s, update_s


def _leave_what_is_needed(scheduler: Scheduler) -> None:
    """Let a request that is none hold all blocks that the running ones do not need in the next step."""
    if not scheduler.running:
        return
    manager = scheduler.kv_cache
    needed = sum(manager.blocks_needed(each.request_id, each.num_tokens) for each in scheduler.running)
    manager.free("ballast")
    assert manager.allocate("ballast", (manager.num_free_blocks - needed) * BLOCK_SIZE)


def time_allocation(num_blocks: int) -> float:
    """Return the seconds of allocating 16 blocks for a request and freeing them, in a pool of that size."""
    manager = KVCacheManager(BlockPool(num_blocks, BLOCK_SIZE), enable_prefix_caching=True)
    times = []
    for number in range(ALLOCATIONS):
        started_s = time.perf_counter()
        manager.allocate(f"r{number}", BLOCKS_EACH * BLOCK_SIZE)
        manager.free(f"r{number}")
        times.append(time.perf_counter() - started_s)
        manager.pool.take_changed()
    return statistics.median(times)
