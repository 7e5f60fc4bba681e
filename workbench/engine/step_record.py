"""Builds the frozen record of one step from the plan, the result and the scheduler's state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workbench.engine.request import Request
from workbench.engine.scheduler import Scheduler
from workbench.engine.scheduler_output import SchedulerOutput
from workbench.engine.update import StepResult
from workbench.telemetry.records import RequestState, StepRecord


@dataclass(frozen=True)
class StepTimes:
    """Moments of one step, in seconds of `time.monotonic`."""

    started_s: float
    drafted_s: float
    scheduled_s: float
    executed_s: float
    updated_s: float


def build_step_record(
    plan: SchedulerOutput,
    result: StepResult,
    scheduler: Scheduler,
    ended: Iterable[Request],
    times: StepTimes,
    epoch: int,
) -> StepRecord:
    """Return what the step did. Takes the pool's pending block changes with it.

    Args:
        plan: the plan of the step.
        result: new tokens and finished requests.
        scheduler: its state after the step.
        ended: requests that ended since the last record.
        times: moments of the step.
        epoch: of the loaded engine.
    """
    pool = scheduler.kv_cache.pool
    requests = [*scheduler.running, *scheduler.waiting, *ended]
    num_decode = sum(item.num_tokens for item in plan.scheduled if not item.is_prefill)
    return StepRecord(
        step_id=plan.step_id,
        started_s=times.started_s,
        draft_s=times.drafted_s - times.started_s,
        schedule_s=times.scheduled_s - times.drafted_s,
        execute_s=times.executed_s - times.scheduled_s,
        update_s=times.updated_s - times.executed_s,
        num_scheduled_tokens=plan.num_tokens,
        num_prefill_tokens=plan.num_tokens - num_decode,
        num_decode_tokens=num_decode,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        num_blocks=pool.num_blocks,
        num_free_blocks=pool.num_free,
        num_active_blocks=pool.num_active,
        num_cached_blocks=pool.num_cached,
        requests=_request_states(requests, plan, result, scheduler),
        block_changes=scheduler.kv_cache.take_changes(),
        explanations=plan.explanations,
        epoch=epoch,
        num_looked_up_tokens=plan.num_looked_up_tokens,
        num_cached_tokens=plan.num_cached_tokens,
        transfers=plan.transfers,
        num_swap_blocks=scheduler.kv_cache.swap_space.num_blocks,
        num_free_swap_blocks=scheduler.kv_cache.swap_space.num_free,
        internal_waste_slots=pool.num_unused_slots,
        external_waste_blocks=scheduler.external_waste_blocks,
    )


def _request_states(
    requests: Iterable[Request], plan: SchedulerOutput, result: StepResult, scheduler: Scheduler
) -> tuple[RequestState, ...]:
    shares = {item.request_id: item for item in plan.scheduled}
    return tuple(
        RequestState(
            request_id=request.request_id,
            status=request.status,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            num_computed_tokens=request.num_computed_tokens,
            num_blocks=scheduler.kv_cache.num_blocks_of(request.request_id),
            num_scheduled_tokens=share.num_tokens if (share := shares.get(request.request_id)) else 0,
            num_new_tokens=len(result.new_token_ids.get(request.request_id, ())),
            is_prefill=share is not None and share.is_prefill,
            num_preemptions=request.num_preemptions,
            arrival_time_s=request.arrival_time_s,
            finish_reason=request.finish_reason,
            num_cached_tokens=request.cache.num_tokens if request.cache is not None else 0,
            cache_miss=request.cache.miss if request.cache is not None else None,
            differs_at=request.cache.differs_at if request.cache is not None else None,
            num_swapped_blocks=scheduler.kv_cache.swap_space.num_blocks_of(request.request_id),
            family=request.family,
            num_sequences=request.num_sequences,
            priority=request.priority,
            most_tokens=request.most_tokens(scheduler.limits.max_model_len),
            num_draft_tokens=len(share.draft_token_ids) if share is not None else 0,
            num_accepted_tokens=result.num_accepted.get(request.request_id, 0),
        )
        for request in requests
    )
