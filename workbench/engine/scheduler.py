"""Iteration-level scheduling: before every step, decide who computes how many tokens.

Running requests are served first, in the policy's order; what is left of the token budget admits
waiting ones. A prompt longer than the budget is computed in chunks beside everyone's decode
(continuous batching as in Orca, OSDI 2022; chunked prefill as in Sarathi-Serve, arXiv 2403.02310).
A context begins with the blocks that the cache holds of it; they need not be computed.
When blocks run out, the policy names a victim, whose blocks are freed and whose whole context,
prompt and output, is computed again later (arXiv 2309.06180, section 4.5).

The scheduler holds no tensors and reads no clock: it runs alone in tests and in simulation.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

from workbench.engine.admission import Admission
from workbench.engine.kv_cache_manager import KVCacheManager, PrefixMatch
from workbench.engine.messages import TokenLogprobs
from workbench.engine.plan_draft import PlanDraft
from workbench.engine.policies import SchedulingPolicy
from workbench.engine.policies.admission import AdmissionPolicy
from workbench.engine.request import Request
from workbench.engine.scheduler_output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from workbench.engine.share import share_of
from workbench.errors import KVCacheExhaustedError
from workbench.telemetry.records import Decision, FinishReason, Reason, RequestStatus

MAX_EXPLAINED_WAITING = 32
"""Explanations per step for requests that merely stand behind the head of the queue."""


@dataclass(frozen=True)
class StepResult:
    """What a step changed for the outside: new tokens per request, and requests that ended."""

    new_token_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    new_logprobs: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    finished: tuple[Request, ...] = ()


class Scheduler:
    """Owns all requests; alone changes their status, counters and output, and the two queues."""

    def __init__(
        self,
        kv_cache: KVCacheManager,
        policy: SchedulingPolicy,
        admission: AdmissionPolicy,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        """`max_model_len` bounds prompt + output of a request, in tokens."""
        self.kv_cache = kv_cache
        self.policy = policy
        self.admission = Admission(kv_cache, admission)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.eos_token_ids = frozenset(eos_token_ids)
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._failed_in_plan: list[Request] = []

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished."""
        return bool(self.requests)

    # ---------------------------------------------------------------------------- membership

    def add(self, request: Request) -> None:
        """Queue a request that the door has accepted."""
        assert request.request_id not in self.requests, f"{request.request_id} exists already"
        self.requests[request.request_id] = request
        self._enqueue(request)

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> Request | None:
        """End a request wherever it stands and free its blocks. Unknown ids return None."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        self._finish(request, RequestStatus.ABORTED, reason)
        return request

    def fail(self, request_id: str, error: Exception) -> Request | None:
        """End a request with an error and free its blocks. Unknown ids return None."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        request.error = error
        self._finish(request, RequestStatus.FAILED, FinishReason.ERROR)
        return request

    # ------------------------------------------------------------------------------ schedule

    def schedule(self, step_id: int) -> SchedulerOutput:
        """Plan one step within the token budget. Allocates blocks, preempts, admits."""
        plan = PlanDraft(self.max_num_batched_tokens, self.max_num_seqs)
        self._serve_running(plan)
        self._admit_waiting(plan)
        self._failed_in_plan = plan.failed
        return SchedulerOutput(
            step_id=step_id,
            scheduled=tuple(self._share_of(r, plan) for r in self.running if r.request_id in plan.shares),
            max_num_batched_tokens=self.max_num_batched_tokens,
            explanations=tuple(plan.explanations),
            num_looked_up_tokens=plan.num_looked_up_tokens,
            num_cached_tokens=plan.num_cached_tokens,
        )

    def _serve_running(self, plan: PlanDraft) -> None:
        """Give each running request its missing tokens, preempting where blocks run out."""
        for request in sorted(self.running, key=self.policy.waiting_key):
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted for the sake of an earlier one in this very loop
            wanted = request.num_missing_tokens
            if plan.budget == 0:
                self._explain_budget(plan, request, Decision.DEFERRED, 0, wanted)
                continue
            tokens = min(wanted, plan.budget)
            if self._make_room(plan, request, request.num_computed_tokens + tokens):
                self._grant(plan, request, tokens, wanted)

    def _make_room(self, plan: PlanDraft, request: Request, num_tokens: int) -> bool:
        """Allocate blocks for `num_tokens` tokens, preempting until they fit. False: it yielded."""
        pool = self.kv_cache.pool
        if self.kv_cache.blocks_for(num_tokens) > pool.num_blocks:
            self._fail_too_large(plan, request, num_tokens)
            return False
        while not self.kv_cache.allocate(request.request_id, num_tokens):
            victim = self.policy.choose_victim(self.running)
            self._preempt(plan, victim, Reason.NO_FREE_BLOCKS, request, num_tokens)
            plan.num_preempted += 1
            if victim is request:
                return False
        return True

    def _grant(self, plan: PlanDraft, request: Request, tokens: int, wanted: int) -> None:
        plan.shares[request.request_id] = tokens
        plan.budget -= tokens
        if tokens < wanted:
            self._explain_budget(plan, request, Decision.CHUNKED, tokens, wanted)

    def _preempt(self, plan: PlanDraft, victim: Request, reason: Reason, cause: Request, num_tokens: int) -> None:
        """Free the victim's blocks and queue it again; what the plan gave it is given back."""
        urgency = {"priority": victim.priority, "urgent_priority": cause.priority}
        urgency = urgency if reason is Reason.MORE_URGENT else {}
        plan.explain(
            victim,
            Decision.PREEMPTED,
            reason,
            cause,
            needed_blocks=self.kv_cache.blocks_needed(cause.request_id, num_tokens),
            free_blocks=self.kv_cache.num_free_blocks,
            freed_blocks=self.kv_cache.num_blocks_of(victim.request_id),
            **urgency,
        )
        plan.budget += plan.shares.pop(victim.request_id, 0)
        self.kv_cache.free(victim.request_id)
        self.running.remove(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.status = RequestStatus.PREEMPTED
        self._enqueue(victim)

    def _fail_too_large(self, plan: PlanDraft, request: Request, num_tokens: int) -> None:
        needed, total = self.kv_cache.blocks_for(num_tokens), self.kv_cache.pool.num_blocks
        plan.explain(request, Decision.FAILED, Reason.OUTGREW_POOL, needed_blocks=needed, num_blocks=total)
        request.error = KVCacheExhaustedError(
            f"{request.request_id} has grown to {num_tokens} tokens and needs {needed} KV blocks, "
            f"the whole pool has {total}: ask for fewer tokens or start the engine with num_blocks >= {needed}"
        )
        self._finish(request, RequestStatus.FAILED, FinishReason.ERROR)
        plan.failed.append(request)

    def _admit_waiting(self, plan: PlanDraft) -> None:
        """Admit from the queue while budget, sequence slots and blocks last.

        A request is admitted only when its whole known context fits, and takes those blocks at
        once: one that is admitted chunk by chunk could be preempted halfway, again and again.
        """
        place = self._next_to_admit(plan)
        while place is not None:
            self._admit(plan, place)
            place = self._next_to_admit(plan)
        for position, request in enumerate(self.waiting[1 : MAX_EXPLAINED_WAITING + 1], start=1):
            plan.explain(request, Decision.DEFERRED, Reason.BEHIND_HEAD, position=position)

    def _next_to_admit(self, plan: PlanDraft) -> int | None:
        """Return the place in the queue of who can start now; if nobody, the plan says which rule held the head."""
        while self.waiting and self.kv_cache.blocks_for(self.waiting[0].num_tokens) > self.kv_cache.pool.num_blocks:
            self._fail_too_large(plan, self.waiting[0], self.waiting[0].num_tokens)
        if not self.waiting:
            return None
        head = self.waiting[0]
        hindrance = self.admission.hindrance(plan, head, self.running)
        if hindrance is not None and self._displace_for(plan, head):
            hindrance = self.admission.hindrance(plan, head, self.running)
        if hindrance is None:
            return 0
        place = self.admission.who_fits(self.waiting) if hindrance[0] is Reason.NO_FREE_BLOCKS else None
        if place is None:
            plan.explain(head, Decision.DEFERRED, hindrance[0], None, **hindrance[1])
        return place

    def _displace_for(self, plan: PlanDraft, urgent: Request) -> bool:
        """Preempt running requests so that a waiting one can start, if the policy lets it and that is enough."""
        if plan.num_preempted or plan.budget == 0:
            return False
        victims = [request for request in self.running if self.policy.may_displace(request, urgent)]
        num_freed = sum(self.kv_cache.num_exclusive_blocks(request.request_id) for request in victims)
        needed, free = self.admission.room(urgent)
        if not victims or needed > free + num_freed:
            return False
        while self.admission.hindrance(plan, urgent, self.running) is not None:
            if not victims:
                return True
            victim = self.policy.choose_victim(victims)
            victims.remove(victim)
            self._preempt(plan, victim, Reason.MORE_URGENT, urgent, urgent.num_tokens)
        return True

    def _admit(self, plan: PlanDraft, place: int) -> None:
        """Give a waiting request its blocks and its share of the budget."""
        request = self.waiting.pop(place)
        decision = Decision.RESUMED if request.status is RequestStatus.PREEMPTED else Decision.ADMITTED
        match = self.admission.match(request)
        needed, free = self.kv_cache.blocks_for(request.num_tokens), self.kv_cache.num_free_blocks
        allocated = self.kv_cache.allocate(request.request_id, request.num_tokens, match)
        assert allocated
        self._begin_at(plan, request, match)
        wanted = request.num_missing_tokens
        tokens = min(wanted, plan.budget)
        numbers = {"needed_blocks": needed, "free_blocks": free, "tokens": tokens}
        if match.num_tokens:
            numbers["cached_tokens"] = match.num_tokens
        if place:
            numbers["overtaken"] = place
        for earlier in self.waiting[:place]:
            earlier.num_overtaken += 1
        plan.explain(request, decision, Reason.PAST_HEAD if place else Reason.ROOM, None, **numbers)
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        request.num_overtaken = 0
        self._grant(plan, request, tokens, wanted)

    def _begin_at(self, plan: PlanDraft, request: Request, match: PrefixMatch) -> None:
        """Count what was found in the cache as computed."""
        request.num_computed_tokens = match.num_tokens
        request.cache = match
        if request.num_preemptions == 0:
            request.num_cached_prompt_tokens = match.num_tokens
        if self.kv_cache.enable_prefix_caching:
            plan.num_looked_up_tokens += request.num_tokens
            plan.num_cached_tokens += match.num_tokens

    def _explain_budget(self, plan: PlanDraft, request: Request, decision: Decision, tokens: int, wanted: int) -> None:
        budget = self.max_num_batched_tokens
        plan.explain(request, decision, Reason.TOKEN_BUDGET, tokens=tokens, wanted_tokens=wanted, budget=budget)

    def _share_of(self, request: Request, plan: PlanDraft) -> ScheduledRequest:
        table = self.kv_cache.block_table(request.request_id)
        return share_of(request, plan.shares[request.request_id], table, self.eos_token_ids)

    # -------------------------------------------------------------------------------- update

    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> StepResult:
        """Take over what the step computed: counters, sampled tokens, and who is done.

        A result for a request that was aborted or preempted since the plan was made is discarded.
        """
        finished = list(self._failed_in_plan)
        self._failed_in_plan = []
        new_token_ids: dict[str, tuple[int, ...]] = {}
        new_logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}
        for item in plan.scheduled:
            request = self.requests.get(item.request_id)
            if request is None or request.status is not RequestStatus.RUNNING:
                continue
            if request.num_computed_tokens != item.start_position:
                continue  # preempted and admitted again: this is a result of its former life
            request.num_computed_tokens += item.num_tokens
            self.kv_cache.commit(
                request.request_id,
                request.num_computed_tokens,
                item.num_tokens,
                request.token_ids,
                request.cache_salt,
            )
            request.prompt_logprobs.extend(output.prompt_logprobs.get(request.request_id, ()))
            if item.samples:
                appended = self._append(request, output.token_ids[request.request_id])
                new_token_ids[request.request_id] = appended
                if request.request_id in output.logprobs:
                    new_logprobs[request.request_id] = output.logprobs[request.request_id][: len(appended)]
            if request.finish_reason is not None:
                self._finish(request, RequestStatus.FINISHED, request.finish_reason)
                finished.append(request)
        return StepResult(new_token_ids, new_logprobs, tuple(finished))

    def _append(self, request: Request, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Append sampled tokens up to the first that ends the request; return those appended."""
        for count, token_id in enumerate(token_ids, start=1):
            request.token_ids.append(token_id)
            request.finish_reason = self._finish_reason(request, token_id)
            if request.finish_reason is not None:
                return token_ids[:count]
        return token_ids

    def _finish_reason(self, request: Request, token_id: int) -> FinishReason | None:
        """Whether this token, the last one appended, ends the request, and why."""
        params = request.sampling_params
        may_stop = request.num_output_tokens > params.min_tokens
        stop_text = request.text.push(token_id, may_stop) if request.text is not None else None
        if token_id in self.eos_token_ids and not params.ignore_eos:
            return FinishReason.STOP
        if token_id in params.stop_ids:
            request.stop_reason = token_id
            return FinishReason.STOP
        if stop_text is not None:
            request.stop_reason = stop_text
            return FinishReason.STOP
        if request.num_output_tokens == params.max_tokens or request.num_tokens >= self.max_model_len:
            return FinishReason.LENGTH
        return None

    # ------------------------------------------------------------------------------- queues

    def _enqueue(self, request: Request) -> None:
        bisect.insort(self.waiting, request, key=self.policy.waiting_key)

    def _finish(self, request: Request, status: RequestStatus, reason: FinishReason) -> None:
        """The one way out: leave the queues, free the blocks, settle the text."""
        queue = self.running if request.status is RequestStatus.RUNNING else self.waiting
        queue.remove(request)
        self.kv_cache.free(request.request_id)
        del self.requests[request.request_id]
        request.status = status
        request.finish_reason = reason
        if request.text is not None:
            request.text.flush()

    def check_integrity(self) -> None:
        """Assert that every request stands in exactly one queue and holds the blocks it needs."""
        queued = [request.request_id for request in (*self.running, *self.waiting)]
        assert sorted(queued) == sorted(self.requests), f"queues hold {queued}, requests are {list(self.requests)}"
        for request in self.waiting:
            assert request.num_computed_tokens == 0 and not self.kv_cache.num_blocks_of(request.request_id)
        for request in self.running:
            held = self.kv_cache.num_blocks_of(request.request_id)
            assert self.kv_cache.blocks_for(request.num_computed_tokens) <= held
            assert request.num_missing_tokens > 0, f"{request.request_id} runs with nothing to compute"
        self.kv_cache.check_integrity()
