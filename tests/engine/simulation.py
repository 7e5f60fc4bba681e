"""A scheduler with a scripted model: no tensors, every token known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from workbench.engine.block_pool import BlockPool
from workbench.engine.contiguous import ContiguousKVCacheManager
from workbench.engine.kv_cache_manager import KVCacheManager
from workbench.engine.messages import answer_id
from workbench.engine.policies import SchedulingPolicy
from workbench.engine.policies.admission import AdmissionPolicy, Strict
from workbench.engine.policies.fcfs import FirstComeFirstServed
from workbench.engine.request import Request
from workbench.engine.scheduler import Scheduler
from workbench.engine.scheduler_output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from workbench.engine.update import StepResult
from workbench.sampling_params import SamplingParams
from workbench.speculation.rejection_sampler import accept_matching
from workbench.speculation_params import NO_SPECULATION, SpeculationParams
from workbench.telemetry.records import BlockTransfer, TransferKind

EOS = 0


class Simulation:
    """Scheduler + manager + pool, stepped by hand; the token at output position i is 100 + i."""

    def __init__(
        self,
        num_blocks: int = 8,
        block_size: int = 8,
        budget: int = 64,
        max_num_seqs: int = 8,
        max_model_len: int = 512,
        policy: SchedulingPolicy | None = None,
        admission: AdmissionPolicy | None = None,
        preemption_mode: str = "recompute",
        is_contiguous: bool = False,
        **cache: Any,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.kv_cache = (ContiguousKVCacheManager if is_contiguous else KVCacheManager)(self.pool, **cache)
        self.scheduler = Scheduler(
            self.kv_cache,
            policy or FirstComeFirstServed(),
            admission or Strict(),
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            eos_token_ids=[EOS],
            preemption_mode=preemption_mode,
        )
        self.token_of: Callable[[str, int], int] = lambda _request_id, position: 100 + position
        self.candidates_of: Callable[[str, tuple[int, ...]], list[tuple[int, float]]] = candidates_after
        self.computed: dict[str, list[tuple[int, ...]]] = {}
        self.memory = Memory(block_size, [group.window for group in self.kv_cache.groups])
        self.requests: dict[str, Request] = {}
        self._num_steps = 0

    def add(
        self,
        request_id: str,
        prompt: int | Sequence[int],
        cache_salt: str = "",
        priority: int = 0,
        speculation: SpeculationParams = NO_SPECULATION,
        **params: Any,
    ) -> Request:
        """Queue a request; a number stands for a prompt of that many tokens 1, 2, 3, ….

        With n or beams, the others' ids follow `answer_id`; `self.requests` has them all.
        """
        tokens = list(range(1, prompt + 1)) if isinstance(prompt, int) else list(prompt)
        sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 16, **params})
        sequences = [
            Request(
                answer_id(request_id, index),
                tokens,
                sampling,
                arrival_index=len(self.requests) + index,
                cache_salt=cache_salt,
                priority=priority,
                family=request_id,
                index=index,
                speculation=speculation,
            )
            for index in range(sampling.num_sequences)
        ]
        for request in sequences:
            self.computed[request.request_id] = []
            self.requests[request.request_id] = request
        if self.kv_cache.shares_blocks:
            self.scheduler.add(sequences[0], sequences[1:])
        else:
            for request in sequences:
                self.scheduler.add(request)
        return sequences[0]

    def plan(self) -> SchedulerOutput:
        """Schedule one step without executing it."""
        self._num_steps += 1
        return self.scheduler.schedule(self._num_steps)

    def finish(self, plan: SchedulerOutput) -> StepResult:
        """Execute a plan with the scripted model and update."""
        self.execute(plan)
        return self.finish_late(plan)

    def execute(self, plan: SchedulerOutput) -> None:
        """Do to the memory what the model would: copies first, then the tokens."""
        self.memory.transfer(plan.transfers)
        for item in plan.scheduled:
            self.computed[item.request_id].append(item.token_ids)
            self.memory.compute(item, [*self.requests[item.request_id].token_ids, *item.draft_token_ids])

    def finish_late(self, plan: SchedulerOutput) -> StepResult:
        """Update from a plan that was executed before something else happened."""
        output = ModelRunnerOutput(
            {draw.request_id: self._verified(item, draw.request_id) for item in plan.scheduled for draw in item.draws},
            candidates={
                item.request_id: tuple(self.candidates_of(item.request_id, item.token_ids)[: item.num_candidates])
                for item in plan.scheduled
                if item.num_candidates
            },
        )
        result = self.scheduler.update_from_output(plan, output)
        self.scheduler.check_integrity()
        return result

    def _verified(self, item: ScheduledRequest, request_id: str) -> tuple[int, ...]:
        """The scripted tokens as far as the draft foretold them, and one more."""
        scripted = [self.token_of(request_id, item.output_position + i) for i in range(len(item.draft_token_ids) + 1)]
        return accept_matching(item.draft_token_ids, scripted).token_ids

    def draft(self, request_id: str, *token_ids: int) -> None:
        """Let these tokens be verified in the next step."""
        self.scheduler.take_drafts({request_id: token_ids})

    def step(self) -> tuple[SchedulerOutput, StepResult]:
        """Plan, execute and update one step."""
        plan = self.plan()
        return plan, self.finish(plan)

    def run(self, most_steps: int = 1000) -> list[SchedulerOutput]:
        """Step until nothing is left to do."""
        plans: list[SchedulerOutput] = []
        while self.scheduler.has_work:
            assert len(plans) < most_steps, f"no end after {most_steps} steps"
            plans.append(self.step()[0])
        return plans


class Memory:
    """What the slots of the KV storage would hold: for each, the context up to and including its token.

    A step reads every position before its own and finds there what was computed from exactly these
    tokens, whoever computed it: that is what sharing, caching and copying must not break.
    """

    def __init__(self, block_size: int, windows: Sequence[int | None]) -> None:
        self._block_size, self._windows = block_size, windows
        self._slots: dict[tuple[int, int], tuple[int, ...]] = {}
        self._host: dict[tuple[int, int], tuple[int, ...]] = {}

    def transfer(self, transfers: Iterable[BlockTransfer]) -> None:
        """Copy whole blocks, in order."""
        for each in transfers:
            source = self._host if each.kind is TransferKind.SWAP_IN else self._slots
            target = self._host if each.kind is TransferKind.SWAP_OUT else self._slots
            for offset in range(self._block_size):
                target.pop((each.target_id, offset), None)
                if (each.source_id, offset) in source:
                    target[each.target_id, offset] = source[each.source_id, offset]

    def compute(self, item: ScheduledRequest, token_ids: Sequence[int]) -> None:
        """Check what a request reads, then write its tokens."""
        end = item.start_position + item.num_tokens
        for group, (window, table) in enumerate(zip(self._windows, item.block_tables, strict=True)):
            first_read = 0 if window is None else max(0, item.start_position - window + 1)
            for position in range(first_read, end):
                slot = (table[position // self._block_size], position % self._block_size)
                context = (group, *token_ids[: position + 1])
                if position >= item.start_position:
                    self._slots[slot] = context
                else:
                    assert self._slots.get(slot) == context, f"{item.request_id} reads foreign contents at {position}"


def candidates_after(request_id: str, token_ids: tuple[int, ...]) -> list[tuple[int, float]]:
    """Next tokens of a beam, which depend on its last token only: neighbours of it, ever less likely."""
    return [(100 + (token_ids[-1] * 7 + 3 * rank) % 11, -0.1 - 0.3 * rank) for rank in range(8)]


def shares(plan: SchedulerOutput) -> dict[str, int]:
    """Tokens per request of a plan."""
    return {item.request_id: item.num_tokens for item in plan.scheduled}


def decisions(plan: SchedulerOutput) -> list[tuple[str, str, str]]:
    """(request, decision, reason) of a plan, in order."""
    return [(e.request_id, e.decision.value, e.reason.value) for e in plan.explanations]
