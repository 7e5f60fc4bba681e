"""The engine's heartbeat: schedule → build and execute → update → record, once per step.

`EngineCore` is single-threaded and knows nothing of queues or clients. It takes commands between
steps and returns events; `EngineService` owns the thread around it.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from workbench.config import EngineConfig
from workbench.engine.block_pool import BlockPool
from workbench.engine.contiguous import ContiguousKVCacheManager
from workbench.engine.detokenizer import OutputText
from workbench.engine.drafter import Drafter
from workbench.engine.kv_cache_manager import KVCacheManager
from workbench.engine.latency import RequestLatency
from workbench.engine.limits import kv_block_bytes, resolve_max_model_len, resolve_num_blocks, resolve_num_swap_blocks
from workbench.engine.messages import BlockDetails, Event, RequestFinished, SetLimits, Submit, TokenEvent, answer_id
from workbench.engine.model_runner import ModelRunner
from workbench.engine.policies import POLICIES
from workbench.engine.policies.admission import ADMISSIONS
from workbench.engine.proposers import make_proposers
from workbench.engine.request import Request
from workbench.engine.scheduler import Scheduler
from workbench.engine.scheduler_output import ScheduledRequest, SchedulerOutput
from workbench.engine.step_record import StepTimes, build_step_record
from workbench.engine.update import StepResult
from workbench.models.loader import LoadedModel
from workbench.sampling_params import MAX_SEED
from workbench.telemetry.records import FinishReason, PoolSnapshot, RequestStatus, StepRecord


@dataclass(frozen=True)
class _OpenRequest:
    """A request that has no terminal event yet."""

    request: Request
    latency: RequestLatency


@dataclass(frozen=True)
class StepOutcome:
    """What a step hands to the service."""

    events: tuple[Event, ...]
    record: StepRecord
    error: Exception | None = None
    """An exception of the model or of the engine; its requests have ended with it."""


class EngineCore:
    """Scheduler, memory manager and model runner of one loaded engine."""

    def __init__(
        self, config: EngineConfig, loaded: LoadedModel, epoch: int = 0, draft: LoadedModel | None = None
    ) -> None:
        """Allocate the KV pool for a loaded model, and what a `draft` model needs beside it.

        Raises:
            ConfigurationError: the pool does not fit, or the context is longer than the model's.
        """
        self.config = config
        self.loaded = loaded
        self.draft = draft
        self.epoch = epoch
        self.max_model_len = resolve_max_model_len(config, loaded.config)
        self.num_blocks = resolve_num_blocks(config, loaded.config)
        self.block_bytes = kv_block_bytes(loaded.config, config.block_size)
        self.num_swap_blocks = resolve_num_swap_blocks(config, loaded.config, self.num_blocks)
        self.runner = ModelRunner(loaded.model, loaded.config, self.num_blocks, config.block_size, self.num_swap_blocks)
        self._block_transfer_s = self.runner.measure_transfer_s()
        self.proposers = make_proposers(
            config, loaded, draft, num_blocks=self.num_blocks, num_swap_blocks=self.num_swap_blocks
        )
        self._drafter = Drafter(self.proposers, self.max_model_len, self.runner.measure_step_s)
        self.scheduler = self._new_scheduler()
        self._open: dict[str, _OpenRequest] = {}
        self._ended: list[Request] = []
        self._num_arrived = 0
        self._step_id = 0

    def _new_scheduler(self) -> Scheduler:
        scheduler = Scheduler(
            self._new_kv_cache(),
            POLICIES[self.config.scheduling_policy](),
            ADMISSIONS[self.config.admission_policy](),
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            max_num_seqs=self.config.max_num_seqs,
            max_model_len=self.max_model_len,
            eos_token_ids=self.loaded.config.eos_token_ids,
            preemption_mode=self.config.preemption_mode,
        )
        scheduler.preemption.block_transfer_s = self._block_transfer_s
        return scheduler

    def _new_kv_cache(self) -> KVCacheManager:
        pool, groups = BlockPool(self.num_blocks, self.config.block_size), self.loaded.config.layer_groups
        if self.config.kv_layout == "contiguous":
            return ContiguousKVCacheManager(
                pool,
                placement=self.config.kv_placement,
                num_swap_blocks=self.num_swap_blocks,
                windows=(None,) * len(groups),
            )
        return KVCacheManager(
            pool,
            enable_prefix_caching=self.config.enable_prefix_caching,
            num_swap_blocks=self.num_swap_blocks,
            windows=tuple(group.window for group in groups),
            # One engine has one model, one dtype and one pool: these name what would have to differ
            # for two blocks of equal tokens to hold different numbers.
            extra_keys=(self.loaded.config.name, self.config.dtype),
        )

    # ------------------------------------------------------------------------------ commands

    @property
    def has_work(self) -> bool:
        """Whether a step would do or report anything."""
        return self.scheduler.has_work or self.scheduler.kv_cache.pool.has_changes or bool(self._ended)

    def submit(self, command: Submit, seed: int) -> None:
        """Queue a request. `seed` drives its sampling when its parameters give none."""
        params = command.sampling_params
        sequences = [self._new_request(command, index, seed) for index in range(params.num_sequences)]
        for request in sequences[: params.n]:
            self._open[request.request_id] = _OpenRequest(request, RequestLatency(command.arrival_time_s))
        if self.scheduler.kv_cache.shares_blocks:
            self.scheduler.add(sequences[0], sequences[1:])
        else:
            for request in sequences:
                self.scheduler.add(request)

    def _new_request(self, command: Submit, index: int, seed: int) -> Request:
        """One of the sequences that a command asks for."""
        params = command.sampling_params
        self._num_arrived += 1
        return Request(
            answer_id(command.request_id, index),
            command.prompt_token_ids,
            params,
            arrival_index=self._num_arrived - 1,
            arrival_time_s=command.arrival_time_s,
            seed=(seed + index) % (MAX_SEED + 1),
            priority=command.priority,
            bad_word_ids=command.bad_word_ids,
            cache_salt=command.cache_salt,
            text=OutputText(self.loaded.tokenizer, params.stop_texts, params.skip_special_tokens),
            family=command.request_id,
            index=index,
            speculation=command.speculation,
        )

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> tuple[Event, ...]:
        """End a request with all its answers, or one answer by its name; an unknown or ended id yields no event."""
        family = [each.request_id for each in self.scheduler.requests.values() if each.family == request_id]
        # Those that have not parted yet come last, and are ended first: nobody computes in another's place.
        ended = [self.scheduler.abort(name, reason) for name in reversed(family or [request_id])]
        return self._end_those_open(request for requests in reversed(ended) for request in requests)

    def preempt(self, request_id: str) -> None:
        """Preempt a request in the next step; see `Scheduler.preempt`."""
        self.scheduler.preempt(request_id)

    def abort_all(self, reason: FinishReason) -> tuple[Event, ...]:
        """End every request."""
        return tuple(event for request_id in list(self.scheduler.requests) for event in self.abort(request_id, reason))

    def _end_those_open(self, requests: Iterable[Request]) -> tuple[Event, ...]:
        """Terminal events; a sequence that is no answer, such as a spare beam, has none."""
        now = time.monotonic()
        return tuple(self._end(request, now) for request in requests if request.request_id in self._open)

    def set_limits(self, limits: SetLimits) -> None:
        """Take over new limits from the next step on.

        Without prefix caching nothing is looked up or noted any more; what is cached stays until its room is needed.
        """
        self.config = replace(self.config, **msgspec.structs.asdict(limits))
        self.scheduler.limits.max_num_batched_tokens = limits.max_num_batched_tokens
        self.scheduler.limits.max_num_seqs = limits.max_num_seqs
        if self.scheduler.kv_cache.shares_blocks:
            self.scheduler.kv_cache.enable_prefix_caching = limits.enable_prefix_caching

    # ---------------------------------------------------------------------------------- step

    def step(self) -> StepOutcome:
        """Run one step. Exceptions end the requests that they concern and are returned, not raised."""
        self._step_id += 1
        started = time.monotonic()
        plan = SchedulerOutput(self._step_id, (), self.scheduler.limits.max_num_batched_tokens)
        drafted = scheduled = executed = started
        events: tuple[Event, ...] = ()
        result, error = StepResult(), None
        try:
            self._draft()
            drafted = scheduled = executed = time.monotonic()
            plan = self.scheduler.schedule(self._step_id)
            scheduled = executed = time.monotonic()
            output = self.runner.execute(plan, self._drafter)
            executed = time.monotonic()
            result = self.scheduler.update_from_output(plan, output)
            events = self._events(plan, result, scheduled, executed)
            self._learn_cost(plan, executed - scheduled)
            self._drafter.learn(plan, result.num_accepted, executed - scheduled)
            if self.config.check_integrity:
                self.scheduler.check_integrity()
        except Exception as exception:  # noqa: BLE001 - no fault of one step may end the engine
            error = exception
            events += self._recover(plan, exception)
        times = StepTimes(started, drafted, scheduled, executed, time.monotonic())
        record = build_step_record(plan, result, self.scheduler, self._ended, times, self.epoch)
        self._ended.clear()
        return StepOutcome(events, record, error)

    def _draft(self) -> None:
        """Have tokens drafted for those who want it."""
        requests, kv_cache = self.scheduler.requests, self.scheduler.kv_cache
        self._drafter.draft(requests, self.scheduler.running, kv_cache)
        self.scheduler.take_drafts({name: draft.token_ids for name, draft in self._drafter.drafts.items()})

    def _learn_cost(self, plan: SchedulerOutput, execute_s: float) -> None:
        num_prefill = sum(item.num_tokens for item in plan.scheduled if item.is_prefill)
        self.scheduler.preemption.observe(plan.num_tokens, num_prefill, execute_s)

    def _events(self, plan: SchedulerOutput, result: StepResult, scheduled_s: float, now_s: float) -> tuple[Event, ...]:
        """Token events of everyone who got tokens, then the terminal events."""
        for item in plan.scheduled:
            self._note_scheduled(item, scheduled_s)
        num_drafted = {item.request_id: len(item.draft_token_ids) for item in plan.scheduled}
        events: list[Event] = []
        for request_id, token_ids in result.new_token_ids.items():
            entry = self._open[request_id]
            entry.latency.on_tokens(now_s, len(token_ids))
            text = entry.request.text.take() if entry.request.text is not None else ""
            logprobs, count = result.new_logprobs.get(request_id), entry.request.num_output_tokens
            num_draft = num_drafted.get(request_id, 0)
            events.append(
                TokenEvent(
                    request_id,
                    plan.step_id,
                    token_ids,
                    text,
                    count,
                    logprobs,
                    index=entry.request.index,
                    num_draft_tokens=num_draft,
                    num_accepted_tokens=result.num_accepted.get(request_id, 0),
                )
            )
        events += [self._end(request, now_s) for request in result.finished if request.request_id in self._open]
        return tuple(events)

    def _note_scheduled(self, item: ScheduledRequest, now_s: float) -> None:
        """A request computes for itself and for those that have not parted from it yet."""
        request = self.scheduler.requests.get(item.request_id)
        partners = () if request is None else request.partners
        for request_id in (item.request_id, *(p.request_id for p in partners), *(d.request_id for d in item.draws)):
            if request_id in self._open:
                self._open[request_id].latency.on_scheduled(now_s)

    def _end(self, request: Request, now_s: float) -> RequestFinished:
        """The one terminal event of a request."""
        assert request.finish_reason is not None
        self._ended.append(request)
        latency = self._open.pop(request.request_id).latency
        wants_prompt_logprobs = request.sampling_params.prompt_logprobs is not None
        return RequestFinished(
            request_id=request.request_id,
            finish_reason=request.finish_reason,
            text=request.text.take() if request.text is not None else "",
            metrics=latency.finish(now_s, request),
            stop_reason=request.stop_reason,
            error=None if request.error is None else str(request.error) or type(request.error).__name__,
            error_type=None if request.error is None else type(request.error).__name__,
            prompt_logprobs=tuple(request.prompt_logprobs) if wants_prompt_logprobs else None,
            index=request.index,
            beam_score=request.beam_score,
        )

    def _recover(self, plan: SchedulerOutput, error: Exception) -> tuple[Event, ...]:
        """End the requests that were in flight when `error` struck, and leave the books balanced.

        Those are the requests of the plan, or all running ones when there is no plan yet. What was to
        be copied to host memory may not have been, so it is forgotten. Should the books not balance
        afterwards, or nobody be found to blame, the pool and the queues are made anew and every
        request ends: the engine always goes on.
        """
        in_flight = [item.request_id for item in plan.scheduled] or [r.request_id for r in self.scheduler.running]
        try:
            for transfer in (*plan.transfers, *self.scheduler.kv_cache.take_transfers()):
                self.scheduler.lose_swapped(transfer.request_id)
            for request_id in in_flight:
                self.scheduler.fail(request_id, error)
            self.scheduler.check_integrity()
        except Exception as second:  # noqa: BLE001 - whatever is broken, the engine starts afresh
            second.__context__ = error
            self.scheduler = self._new_scheduler()
        if all(request_id in self.scheduler.requests for request_id in self._open):
            self.scheduler = self._new_scheduler()
        lost = [entry.request for request_id, entry in self._open.items() if request_id not in self.scheduler.requests]
        for request in lost:
            if request.finish_reason is None:
                request.error, request.status, request.finish_reason = error, RequestStatus.FAILED, FinishReason.ERROR
        return self._end_those_open(lost)

    # ---------------------------------------------------------------------------- inspection

    @property
    def most_context_tokens(self) -> int:
        """Most tokens of one request that the context and the whole pool can hold."""
        is_too_large = self.scheduler.admission.is_too_large
        return bisect.bisect_left(range(1, self.max_model_len + 1), True, key=is_too_large)

    def check_integrity(self) -> None:
        """Assert every invariant of queues, tables and pool."""
        self.scheduler.check_integrity()

    def release(self) -> None:
        """Let go of the KV storage; the core cannot step any more."""
        self.runner.release()

    def pool_snapshot(self) -> PoolSnapshot:
        """Return the state of every block, straight from the pool."""
        return self.scheduler.kv_cache.snapshot(self._step_id, self.epoch)

    def block_details(self, block_id: int) -> BlockDetails:
        """Return one block in full, its tokens decoded.

        Raises:
            IndexError: no such block.
        """
        if not 0 <= block_id < self.num_blocks:
            raise IndexError(f"block_id={block_id} does not exist: blocks are 0 to {self.num_blocks - 1}")
        kv_cache = self.scheduler.kv_cache
        state = kv_cache.block_state(block_id)
        token_ids: tuple[int, ...] = ()
        first = state.logical_index * self.config.block_size if state.logical_index >= 0 else -1
        key = kv_cache.pool.key_of(block_id)
        if state.request_ids:
            token_ids = tuple(self.scheduler.requests[state.request_ids[0]].token_ids[first : first + state.num_filled])
        elif key is not None:
            token_ids = key.token_ids
        decode = self.loaded.tokenizer.decode
        return BlockDetails(
            block_id=block_id,
            status=state.status,
            ref_count=state.ref_count,
            num_filled=state.num_filled,
            request_ids=kv_cache.owners(block_id),
            logical_index=state.logical_index,
            first_position=first,
            token_ids=token_ids,
            tokens=tuple(decode([token_id], skip_special_tokens=False) for token_id in token_ids),
            num_bytes=self.block_bytes,
            step_id=self._step_id,
        )
