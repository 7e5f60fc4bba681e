"""A small paged engine without a model: step records whose pool is known, with sharing, caching, copies and swaps.

It exists to feed telemetry, the live feed and the views with every state that a block can have,
including those (shared, cached) that a given engine may not produce.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from workbench.telemetry.records import (
    BlockState,
    BlockStatus,
    BlockTransfer,
    Decision,
    Explanation,
    FinishReason,
    PoolSnapshot,
    Reason,
    RequestState,
    RequestStatus,
    StepRecord,
    TransferKind,
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
    family: str = ""
    num_swapped: int = 0


class SimulatedEngine:
    """`step()` returns the next record; `snapshot()` is the truth to compare with."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 16,
        seed: int = 0,
        budget: int = 64,
        epoch: int = 1,
        num_swap_blocks: int = 0,
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
        self.num_forks: dict[str, int] = {}
        self.num_swap_blocks = self.num_free_swap_blocks = num_swap_blocks
        self.transfers: list[BlockTransfer] = []
        self.explanations: list[Explanation] = []
        self.num_looked_up_tokens = self.num_cached_tokens = 0
        self._before: dict[int, BlockState] = {b: self.state(b) for b in range(num_blocks)}

    def add(self, num_prompt_tokens: int, max_tokens: int, prefix: str | None = None) -> str:
        """Queue a request; requests of the same `prefix` share their full prompt blocks."""
        name = f"r{self.next_id}"
        request = SimulatedRequest(name, num_prompt_tokens, max_tokens, prefix, family=name)
        self.next_id += 1
        self.waiting.append(request)
        return request.request_id

    def add_random(self) -> None:
        self.add(self.random.randint(1, 90), self.random.randint(2, 60), self.random.choice([None, "system", "few"]))

    def act_at_random(self) -> None:
        """A new request now and then, and another answer of one that runs."""
        if self.random.random() < 0.3:
            self.add_random()
        decoding = [request.request_id for request in self.running if request.num_output]
        if decoding and len(self.running) < 24 and self.random.random() < 0.15:
            self.fork(self.random.choice(decoding))

    def fork(self, request_id: str) -> str:
        """Give a running request another answer, which shares all its blocks until it writes."""
        parent = next(request for request in self.running if request.request_id == request_id)
        number = self.num_forks[parent.family] = self.num_forks.get(parent.family, 0) + 1
        child = replace(parent, request_id=f"{parent.family}.{number}", table=list(parent.table))
        for block in child.table:
            self.owners[block].append(child.request_id)
        self.running.append(child)
        return child.request_id

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
        self.transfers, self.explanations = [], []
        self.num_looked_up_tokens = self.num_cached_tokens = 0
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
            needed = max(request.num_prompt_tokens // self.block_size + 2, request.num_swapped + 1)
            if len(self.free) < needed:
                self._defer(needed)
                return
            self.waiting.pop(0)
            if request.num_swapped:
                self._swap_in(request)
            else:
                self._share_prefix(request)
            request.status = RequestStatus.RUNNING
            self.running.append(request)

    def _defer(self, needed: int) -> None:
        head, *others = self.waiting
        numbers = {"needed_blocks": needed, "free_blocks": len(self.free)}
        self.explanations.append(Explanation(head.request_id, Decision.DEFERRED, Reason.NO_FREE_BLOCKS, numbers))
        for position, request in enumerate(others[:32], 1):
            behind = Explanation(request.request_id, Decision.DEFERRED, Reason.BEHIND_HEAD, {"position": position})
            self.explanations.append(behind)

    def _swap_in(self, request: SimulatedRequest) -> None:
        for index in range(request.num_swapped):
            block = self._take(request, index)
            self.filled[block] = max(0, min(self.block_size, request.num_computed - index * self.block_size))
            self.transfers.append(BlockTransfer(TransferKind.SWAP_IN, index, block, request.request_id))
        self.num_free_swap_blocks += request.num_swapped
        request.num_swapped = 0

    def _share_prefix(self, request: SimulatedRequest) -> None:
        full = (request.num_prompt_tokens - 1) // self.block_size
        self.num_looked_up_tokens += request.num_prompt_tokens + request.num_output
        for index in range(min(full, 3) if request.prefix else 0):
            block = self.cached.get((request.prefix or "", index))
            if block is None:
                return
            if block in self.free:
                self.free.remove(block)
            self.owners[block].append(request.request_id)
            request.table.append(block)
            request.num_computed += self.block_size
            self.num_cached_tokens += self.block_size

    def _grow(self, request: SimulatedRequest, num_tokens: int) -> bool:
        first = request.num_computed // self.block_size
        if first < len(request.table) and len(self.owners[request.table[first]]) > 1:
            if not self._make_room(request):
                return False
            if len(self.owners[request.table[first]]) > 1:  # the other owner may have had to go
                self._copy(request, first)
        while len(request.table) * self.block_size < num_tokens:
            if not self._make_room(request):
                return False
            self._take(request, len(request.table))
        return True

    def _make_room(self, request: SimulatedRequest) -> bool:
        """Preempt until a block is free; False when the request itself had to go."""
        while not self.free:
            victim = self.running[-1]
            self._preempt(victim, request.request_id)
            if victim is request:
                return False
        return True

    def _take(self, request: SimulatedRequest, index: int) -> int:
        block = self.free.pop(0)
        self.cached = {k: b for k, b in self.cached.items() if b != block}
        self.owners[block] = [request.request_id]
        self.logical[block] = index
        self.filled[block] = 0
        request.table.append(block)
        return block

    def _copy(self, request: SimulatedRequest, index: int) -> None:
        """Copy-on-write: a block of its own in the place of a shared one."""
        source = request.table[index]
        later = request.table[index + 1 :]
        del request.table[index:]
        target = self._take(request, index)
        request.table += later
        self.owners[source].remove(request.request_id)
        self.filled[target] = request.num_computed - index * self.block_size
        self.transfers.append(BlockTransfer(TransferKind.COPY, source, target, request.request_id))

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

    def _preempt(self, request: SimulatedRequest, cause: str) -> None:
        numbers = {"needed_blocks": 1, "free_blocks": 0}
        is_swapped = len(request.table) <= self.num_free_swap_blocks and bool(request.table)
        if is_swapped:
            request.num_swapped = numbers["swapped_blocks"] = len(request.table)
            self.num_free_swap_blocks -= request.num_swapped
            for index, block in enumerate(request.table):
                self.transfers.append(BlockTransfer(TransferKind.SWAP_OUT, block, index, request.request_id))
        else:
            request.num_computed = 0
        self._release(request)
        self.running.remove(request)
        request.status = RequestStatus.SWAPPED if is_swapped else RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.waiting.insert(0, request)
        why = Explanation(request.request_id, Decision.PREEMPTED, Reason.NO_FREE_BLOCKS, numbers, cause)
        self.explanations.append(why)

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
                    num_swapped_blocks=r.num_swapped,
                    family=r.family,
                    most_tokens=r.num_prompt_tokens + r.max_tokens,
                )
                for r in [*self.running, *self.waiting, *ended]
            ),
            block_changes=changes,
            explanations=tuple(self.explanations),
            epoch=self.epoch,
            num_looked_up_tokens=self.num_looked_up_tokens,
            num_cached_tokens=self.num_cached_tokens,
            transfers=tuple(self.transfers),
            num_swap_blocks=self.num_swap_blocks,
            num_free_swap_blocks=self.num_free_swap_blocks,
            internal_waste_slots=sum(
                self.block_size - s.num_filled for s in after.values() if s.status is BlockStatus.ACTIVE
            ),
        )
