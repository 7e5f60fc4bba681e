"""A small paged engine without a model: step records whose pool is known, with sharing and caching.

It exists to feed telemetry, the live feed and the views with every state that a block can have,
including those (shared, cached) that a given engine may not produce.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from workbench.telemetry.records import (
    BlockState,
    BlockStatus,
    FinishReason,
    PoolSnapshot,
    RequestState,
    RequestStatus,
    StepRecord,
)

STEP_S = 0.05


@dataclass
class SimulatedRequest:
    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    prefix: str | None
    status: RequestStatus = RequestStatus.WAITING
    table: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_output: int = 0
    num_preemptions: int = 0


class SimulatedEngine:
    """`step()` returns the next record; `snapshot()` is the truth to compare with."""

    def __init__(
        self, num_blocks: int = 64, block_size: int = 16, seed: int = 0, budget: int = 64, epoch: int = 1
    ) -> None:
        self.epoch = epoch
        self.num_blocks, self.block_size, self.budget = num_blocks, block_size, budget
        self.random = random.Random(seed)
        self.step_id = -1
        self.now_s = 100.0
        self.free = list(range(num_blocks))
        self.owners: list[list[str]] = [[] for _ in range(num_blocks)]
        self.filled = [0] * num_blocks
        self.logical = [-1] * num_blocks
        self.cached: dict[tuple[str, int], int] = {}
        self.running: list[SimulatedRequest] = []
        self.waiting: list[SimulatedRequest] = []
        self.next_id = 1
        self._before: dict[int, BlockState] = {b: self.state(b) for b in range(num_blocks)}

    def add(self, num_prompt_tokens: int, max_tokens: int, prefix: str | None = None) -> str:
        """Queue a request; requests of the same `prefix` share their full prompt blocks."""
        request = SimulatedRequest(f"r{self.next_id}", num_prompt_tokens, max_tokens, prefix)
        self.next_id += 1
        self.waiting.append(request)
        return request.request_id

    def add_random(self) -> None:
        self.add(self.random.randint(1, 90), self.random.randint(2, 60), self.random.choice([None, "system", "few"]))

    def state(self, block: int) -> BlockState:
        owners = self.owners[block]
        kept = block in self.cached.values()
        status = BlockStatus.ACTIVE if owners else BlockStatus.CACHED if kept else BlockStatus.FREE
        if status is BlockStatus.FREE:
            return BlockState(block, status, 0, 0, (), -1)
        return BlockState(block, status, len(owners), self.filled[block], tuple(owners), self.logical[block])

    def snapshot(self) -> PoolSnapshot:
        return PoolSnapshot(self.step_id, self.block_size, tuple(self.state(b) for b in range(self.num_blocks)))

    def step(self) -> StepRecord:
        """Admit, grow, compute, finish; preempt the youngest when blocks run out."""
        self.step_id += 1
        left, ended, scheduled, new = self.budget, [], {}, {}
        self._admit()
        for request in list(self.running):
            if request not in self.running:
                continue
            wanted = request.num_prompt_tokens + request.num_output - request.num_computed
            tokens = min(wanted, left)
            if tokens <= 0 or not self._grow(request, request.num_computed + tokens):
                continue
            left -= tokens
            request.num_computed += tokens
            scheduled[request.request_id] = tokens
            self._fill(request)
            if request.num_computed == request.num_prompt_tokens + request.num_output:
                request.num_output += 1
                new[request.request_id] = 1
                if request.num_output >= request.max_tokens:
                    self._release(request)
                    self.running.remove(request)
                    request.status = RequestStatus.FINISHED
                    ended.append(request)
        return self._record(ended, scheduled, new)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < 24:
            request = self.waiting[0]
            if len(self.free) < request.num_prompt_tokens // self.block_size + 2:
                return
            self.waiting.pop(0)
            self._share_prefix(request)
            request.status = RequestStatus.RUNNING
            self.running.append(request)

    def _share_prefix(self, request: SimulatedRequest) -> None:
        full = (request.num_prompt_tokens - 1) // self.block_size
        for index in range(min(full, 3) if request.prefix else 0):
            block = self.cached.get((request.prefix or "", index))
            if block is None:
                return
            if block in self.free:
                self.free.remove(block)
            self.owners[block].append(request.request_id)
            request.table.append(block)
            request.num_computed += self.block_size

    def _grow(self, request: SimulatedRequest, num_tokens: int) -> bool:
        while len(request.table) * self.block_size < num_tokens:
            while not self.free:
                victim = self.running[-1]
                self._preempt(victim)
                if victim is request:
                    return False
            block = self.free.pop(0)
            self.cached = {k: b for k, b in self.cached.items() if b != block}
            self.owners[block] = [request.request_id]
            self.logical[block] = len(request.table)
            self.filled[block] = 0
            request.table.append(block)
        return True

    def _fill(self, request: SimulatedRequest) -> None:
        for index, block in enumerate(request.table):
            filled = max(0, min(self.block_size, request.num_computed - index * self.block_size))
            self.filled[block] = max(self.filled[block], filled)
            in_prompt = (index + 1) * self.block_size <= request.num_prompt_tokens
            if request.prefix and index < 3 and in_prompt and filled == self.block_size:
                self.cached.setdefault((request.prefix, index), block)

    def _release(self, request: SimulatedRequest) -> None:
        for block in reversed(request.table):
            self.owners[block].remove(request.request_id)
            if not self.owners[block]:
                self.free.append(block) if block in self.cached.values() else self.free.insert(0, block)
        request.table = []

    def _preempt(self, request: SimulatedRequest) -> None:
        self._release(request)
        self.running.remove(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed = 0
        request.num_preemptions += 1
        self.waiting.insert(0, request)

    def _record(self, ended: list[SimulatedRequest], scheduled: dict[str, int], new: dict[str, int]) -> StepRecord:
        after = {b: self.state(b) for b in range(self.num_blocks)}
        changes = tuple(s for b, s in after.items() if s != self._before[b])
        self._before = after
        started_s, self.now_s = self.now_s, self.now_s + STEP_S
        statuses = [s.status for s in after.values()]
        total = sum(scheduled.values())
        return StepRecord(
            step_id=self.step_id,
            started_s=started_s,
            schedule_s=0.001,
            execute_s=STEP_S - 0.002,
            update_s=0.001,
            num_scheduled_tokens=total,
            num_prefill_tokens=sum(n for n in scheduled.values() if n > 1),
            num_decode_tokens=sum(n for n in scheduled.values() if n == 1),
            max_num_batched_tokens=self.budget,
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_blocks=self.num_blocks,
            num_free_blocks=statuses.count(BlockStatus.FREE),
            num_active_blocks=statuses.count(BlockStatus.ACTIVE),
            num_cached_blocks=statuses.count(BlockStatus.CACHED),
            requests=tuple(
                RequestState(
                    request_id=r.request_id,
                    status=r.status,
                    num_prompt_tokens=r.num_prompt_tokens,
                    num_output_tokens=r.num_output,
                    num_computed_tokens=r.num_computed,
                    num_blocks=len(r.table),
                    num_scheduled_tokens=scheduled.get(r.request_id, 0),
                    num_new_tokens=new.get(r.request_id, 0),
                    is_prefill=scheduled.get(r.request_id, 0) > 1,
                    num_preemptions=r.num_preemptions,
                    arrival_time_s=100.0,
                    finish_reason=FinishReason.LENGTH if r.status is RequestStatus.FINISHED else None,
                )
                for r in [*self.running, *self.waiting, *ended]
            ),
            block_changes=changes,
            explanations=(),
            epoch=self.epoch,
        )
