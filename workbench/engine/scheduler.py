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

from collections.abc import Iterable, Mapping, Sequence

from workbench.engine.admission import Admission
from workbench.engine.beam_steps import begin_beams
from workbench.engine.context_lookup import PrefixMatch
from workbench.engine.kv_cache_manager import KVCacheManager
from workbench.engine.plan_draft import PlanDraft, even_counts
from workbench.engine.policies import SchedulingPolicy
from workbench.engine.policies.admission import AdmissionPolicy
from workbench.engine.preemption import Preemption
from workbench.engine.request import Request
from workbench.engine.room import Demand
from workbench.engine.roster import Roster
from workbench.engine.scheduler_output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from workbench.engine.share import share_of
from workbench.engine.step_limits import StepLimits
from workbench.engine.update import StepResult, Update
from workbench.errors import KVCacheExhaustedError
from workbench.telemetry.records import Decision, FinishReason, Reason, RequestStatus

MAX_EXPLAINED_WAITING = 32
"""Explanations per step for requests that merely stand behind the head of the queue."""


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
        preemption_mode: str = "recompute",
    ) -> None:
        """`max_model_len` bounds prompt + output of a request, in tokens."""
        self.kv_cache = kv_cache
        self.policy = policy
        self.preemption = Preemption(kv_cache, preemption_mode)
        self.limits = StepLimits(max_num_batched_tokens, max_num_seqs, max_model_len)
        self.eos_token_ids = frozenset(eos_token_ids)
        self.roster = Roster(kv_cache, policy)
        self.admission = Admission(self.roster, admission, self.limits)
        self._failed_in_plan: list[Request] = []
        self._to_preempt: set[str] = set()

    @property
    def requests(self) -> Mapping[str, Request]:
        """All requests that have not ended."""
        return self.roster.requests

    @property
    def waiting(self) -> Sequence[Request]:
        """Requests that wait, in the policy's order."""
        return self.roster.waiting

    @property
    def running(self) -> Sequence[Request]:
        """Requests that run."""
        return self.roster.running

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished."""
        return bool(self.requests)

    @property
    def external_waste_blocks(self) -> int:
        """Free blocks that the first in the queue cannot use for where they lie."""
        if not self.waiting or self.kv_cache.shares_blocks:
            return 0
        return self.kv_cache.external_waste(self.admission.room(self.waiting[0]).claim)

    # ---------------------------------------------------------------------------- membership

    def add(self, request: Request, partners: Sequence[Request] = ()) -> None:
        """Queue a request that the door has accepted.

        partners: further answers to its prompt, or beams: they share its blocks and part from it later.
        """
        self.roster.add(request, partners)
        if request.sampling_params.use_beam_search:
            begin_beams(request, self.limits.max_model_len, self.eos_token_ids)

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> tuple[Request, ...]:
        """End a request wherever it stands and free its blocks. Return who ended: nobody for an unknown id.

        Answers that have not parted from it yet go on without it. Beams end together.
        """
        request = self.requests.get(request_id)
        if request is None:
            return ()
        ending = request.beams.requests if request.beams is not None else (request,)
        if request.beams is None and request.partners:
            self.roster.hand_over(request)
        for each in ending:
            self.roster.finish(each, RequestStatus.ABORTED, reason)
        return ending

    def fail(self, request_id: str, error: Exception) -> tuple[Request, ...]:
        """End a request with an error, and with it those that depend on it. Return who ended."""
        request = self.requests.get(request_id)
        if request is None:
            return ()
        ending = request.beams.requests if request.beams is not None else (request, *request.partners)
        for each in ending:
            each.error = error
            self.roster.finish(each, RequestStatus.FAILED, FinishReason.ERROR)
        return ending

    def lose_swapped(self, request_id: str) -> None:
        """Forget what lies of a request in host memory: it will be computed again."""
        request = self.requests.get(request_id)
        if request is not None:
            self.roster.lose_swapped(request)

    def take_drafts(self, drafts: Mapping[str, tuple[int, ...]]) -> None:
        """Note what may follow the known tokens of running requests; the next plan has it verified where it fits."""
        for request_id, token_ids in drafts.items():
            self.requests[request_id].draft_token_ids = token_ids

    def preempt(self, request_id: str) -> None:
        """Preempt a request with all its answers, or one answer, in the next step; one that does not run then stays."""
        self._to_preempt.add(request_id)

    # ------------------------------------------------------------------------------ schedule

    def schedule(self, step_id: int) -> SchedulerOutput:
        """Plan one step within the token budget. Allocates blocks, preempts, admits."""
        num_sequences = sum(request.num_sequences for request in self.running)
        plan = PlanDraft(self.limits, num_sequences, held_back=self._budget_for_drafts())
        self._preempt_as_asked(plan)
        self._serve_running(plan)
        self._admit_waiting(plan)
        self._break_standstill(plan)
        self._add_drafts(plan)
        self._failed_in_plan = plan.failed
        return SchedulerOutput(
            step_id=step_id,
            scheduled=tuple(self._share_of(r, plan) for r in self.running if r.request_id in plan.shares),
            max_num_batched_tokens=self.limits.max_num_batched_tokens,
            transfers=self.kv_cache.take_transfers(),
            explanations=tuple(plan.explanations),
            num_looked_up_tokens=plan.num_looked_up_tokens,
            num_cached_tokens=plan.num_cached_tokens,
        )

    def _preempt_as_asked(self, plan: PlanDraft) -> None:
        """Preempt those that somebody asked to preempt, if they run."""
        asked, self._to_preempt = self._to_preempt, set()
        for request in list(self.running) if asked else ():
            is_asked = request.request_id in asked or request.family in asked
            if is_asked and request.status is RequestStatus.RUNNING:
                self._preempt(plan, request, Reason.REQUESTED)
                plan.num_preempted += 1

    def _serve_running(self, plan: PlanDraft) -> None:
        """Give each running request its missing tokens, preempting where blocks run out."""
        for request in sorted(self.running, key=self.policy.waiting_key):
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted for the sake of an earlier one in this very loop
            wanted = request.num_missing_tokens
            if wanted == 0:
                continue  # a beam that waits for the others
            if plan.budget == 0:
                self._explain_budget(plan, request, Decision.DEFERRED, 0, wanted)
                continue
            tokens = min(wanted, plan.budget)
            if self._make_room(plan, request, request.num_computed_tokens + tokens):
                self._grant(plan, request, tokens, wanted)

    def _budget_for_drafts(self) -> int:
        """Tokens of a step for drafts: at most half of what is left when everyone who runs has one token."""
        num_drafted = sum(len(request.draft_token_ids) for request in self.running)
        return min(num_drafted, max(0, self.limits.max_num_batched_tokens - len(self.running)) // 2)

    def _add_drafts(self, plan: PlanDraft) -> None:
        """Give drafted tokens what budget and blocks are left: they never cost anybody else a token or a block."""
        plan.release_held_back()
        drafting = [
            request
            for request in self.running
            if request.draft_token_ids and plan.shares.get(request.request_id) == request.num_missing_tokens
        ]
        counts = even_counts([len(request.draft_token_ids) for request in drafting], plan.budget)
        for request, count in zip(drafting, counts, strict=True):
            computed, known = request.num_computed_tokens, request.num_tokens
            while count and not self.kv_cache.allocate(request.request_id, known + count, computed):
                count -= 1
            plan.shares[request.request_id] += count
            plan.budget -= count

    def _make_room(self, plan: PlanDraft, request: Request, num_tokens: int) -> bool:
        """Allocate blocks for `num_tokens` tokens, preempting until they fit. False: it yielded."""
        if self.admission.is_too_large(num_tokens):
            self._fail_too_large(plan, request, num_tokens)
            return False
        computed = request.num_computed_tokens
        while not self.kv_cache.allocate(request.request_id, num_tokens, computed):
            needed = self.kv_cache.blocks_needed(request.request_id, num_tokens, computed)
            victim = self.policy.choose_victim(self.running)
            self._preempt(plan, victim, Reason.NO_FREE_BLOCKS, request, needed)
            plan.num_preempted += 1
            if request.status is not RequestStatus.RUNNING:
                return False
        return True

    def _grant(self, plan: PlanDraft, request: Request, tokens: int, wanted: int) -> None:
        plan.shares[request.request_id] = tokens
        plan.budget -= tokens
        if tokens < wanted:
            self._explain_budget(plan, request, Decision.CHUNKED, tokens, wanted)

    def _preempt(
        self, plan: PlanDraft, victim: Request, reason: Reason, cause: Request | None = None, needed: int | None = None
    ) -> None:
        """Preempt a request; of beams all, since none goes on without the others.

        cause: who needs `needed` blocks, if anybody does.
        """
        if victim.beams is None:
            self._preempt_one(plan, victim, reason, cause, needed)
            return
        victim.beams.withdraw()
        for beam in victim.beams.requests:
            if beam.status is RequestStatus.RUNNING:
                self._preempt_one(plan, beam, reason, cause, needed)

    def _preempt_one(
        self, plan: PlanDraft, victim: Request, reason: Reason, cause: Request | None, needed: int | None
    ) -> None:
        """Take the victim's blocks and queue it again; what the plan gave it is given back."""
        # A beam may have computed all its tokens. The last is computed again, for what it may go on with.
        num_kept = min(victim.num_computed_tokens, victim.num_tokens - 1)
        keeps, figures = self.preemption.keeps(victim.request_id, num_kept)
        demand = {} if needed is None else {"needed_blocks": needed}
        if cause is not None and reason is Reason.MORE_URGENT:
            figures |= {"priority": victim.priority, "urgent_priority": cause.priority}
        plan.explain(
            victim,
            Decision.PREEMPTED,
            reason,
            cause,
            **demand,
            free_blocks=self.kv_cache.num_free_blocks,
            freed_blocks=self.kv_cache.num_freed_with([victim.request_id]),
            **figures,
        )
        plan.budget += plan.shares.pop(victim.request_id, 0)
        plan.num_sequences -= victim.num_sequences
        self.roster.preempt(victim, num_kept if keeps else 0)

    def _break_standstill(self, plan: PlanDraft) -> None:
        """Let the beams that came first go on where all that run are beams waiting for one that does not fit.

        The one they miss starts, whoever stands before it in the queue; others yield to it. It is always the same
        beams that go on, so that two searches cannot take each other's blocks for ever. Where nobody is left to
        yield, the beams do not fit together and end.
        """
        if plan.shares or plan.num_preempted or plan.failed or not self.running:
            return
        first = min(self.running, key=lambda request: request.arrival_index)
        missing = next(request for request in self.waiting if request.family == first.family)
        others = [request for request in self.running if request.family != first.family]
        if self.admission.hindrance(plan, missing) is None:
            self._admit(plan, self.waiting.index(missing))
        elif others:
            needed = self.admission.room(missing).needed_blocks
            self._preempt(plan, self.policy.choose_victim(others), Reason.STANDSTILL, missing, needed)
            plan.num_preempted += 1
        else:
            self._fail_too_large(plan, missing, missing.num_tokens * missing.sampling_params.num_sequences)

    def _fail_too_large(self, plan: PlanDraft, request: Request, num_tokens: int) -> None:
        needed = self.kv_cache.blocks_for(Demand(num_tokens, step_tokens=self.limits.max_num_batched_tokens))
        total = self.kv_cache.pool.num_blocks
        plan.explain(request, Decision.FAILED, Reason.OUTGREW_POOL, needed_blocks=needed, num_blocks=total)
        beams = f" in {request.sampling_params.beam_width} beams" if request.beams is not None else ""
        error = KVCacheExhaustedError(
            f"{request.request_id} has grown to {num_tokens} tokens{beams} and needs {needed} KV blocks, "
            f"the whole pool has {total}: ask for fewer tokens or start the engine with num_blocks >= {needed}"
        )
        for each in self.fail(request.request_id, error):
            plan.shares.pop(each.request_id, None)
            plan.failed.append(each)

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
        while self.waiting and self.admission.is_too_large(self.waiting[0].num_tokens):
            self._fail_too_large(plan, self.waiting[0], self.waiting[0].num_tokens)
        if not self.waiting:
            return None
        head = self.waiting[0]
        hindrance = self.admission.hindrance(plan, head)
        if hindrance is not None and (self._yield_budget_to(plan, head) or self._displace_for(plan, head)):
            hindrance = self.admission.hindrance(plan, head)
        if hindrance is None:
            return 0
        is_about_memory = hindrance[0] in (Reason.NO_FREE_BLOCKS, Reason.NO_FREE_RUN)
        place = self.admission.who_fits() if is_about_memory else None
        if place is None:
            plan.explain(head, Decision.DEFERRED, hindrance[0], None, **hindrance[1])
        return place

    def _yield_budget_to(self, plan: PlanDraft, urgent: Request) -> bool:
        """Take this step's tokens back from running requests, if the policy lets a waiting one have them.

        False when there are none, or when the waiting one would not fit beside them.
        """
        if plan.budget > 0 or plan.num_preempted or not self.admission.room(urgent).is_enough:
            return False
        yielding = [each for each in self._displaceable(urgent) if each.request_id in plan.shares]
        for request in sorted(yielding, key=self.policy.waiting_key, reverse=True):
            share, missing = plan.shares.pop(request.request_id), urgent.num_missing_tokens - plan.budget
            taken = min(share, missing)
            plan.budget += taken
            if share > taken:
                plan.shares[request.request_id] = share - taken
            plan.explain(
                request,
                Decision.CHUNKED if share > taken else Decision.DEFERRED,
                Reason.MORE_URGENT,
                urgent,
                tokens=share - taken,
                wanted_tokens=share,
                priority=request.priority,
                urgent_priority=urgent.priority,
            )
            if taken == missing:
                break
        return bool(yielding)

    def _displaceable(self, urgent: Request) -> list[Request]:
        return [request for request in self.running if self.policy.may_displace(request, urgent)]

    def _displace_for(self, plan: PlanDraft, urgent: Request) -> bool:
        """Preempt running requests so that a waiting one can start, if the policy lets it and that is enough."""
        if plan.num_preempted or plan.budget == 0:
            return False
        victims = self._displaceable(urgent)
        room = self.admission.room(urgent)
        after = self.kv_cache.claim_after(request.request_id for request in victims)
        if not victims or room.claim > after:
            return False
        while self.admission.hindrance(plan, urgent) is not None:
            running = [victim for victim in victims if victim.status is RequestStatus.RUNNING]
            if not running:
                return True
            self._preempt(plan, self.policy.choose_victim(running), Reason.MORE_URGENT, urgent, room.needed_blocks)
        return True

    def _admit(self, plan: PlanDraft, place: int) -> None:
        """Give a waiting request its blocks and its share of the budget."""
        request = self.waiting[place]
        was_preempted = request.status in (RequestStatus.PREEMPTED, RequestStatus.SWAPPED)
        match = self.admission.match(request)
        demand, free = self.admission.demand(request), self.kv_cache.num_free_blocks
        needed = self.kv_cache.blocks_for(demand)
        has_begun = self.kv_cache.begin(request.request_id, demand, match)
        assert has_begun
        self._begin_at(plan, request, match)
        wanted = request.num_missing_tokens
        tokens = min(wanted, plan.budget)
        numbers = {"needed_blocks": needed, "free_blocks": free, "tokens": tokens}
        if match.num_tokens:
            numbers["cached_tokens"] = match.num_tokens
        if match.num_host_blocks:
            numbers["swapped_blocks"] = match.num_host_blocks
        if place:
            numbers["overtaken"] = place
        decision = Decision.RESUMED if was_preempted else Decision.ADMITTED
        plan.explain(request, decision, Reason.PAST_HEAD if place else Reason.ROOM, None, **numbers)
        self.roster.start(place)
        plan.num_sequences += request.num_sequences
        self._grant(plan, request, tokens, wanted)

    def _begin_at(self, plan: PlanDraft, request: Request, match: PrefixMatch) -> None:
        """Count what was found in the cache and in host memory as computed."""
        request.num_computed_tokens = match.num_known_tokens
        request.cache = match
        if request.num_preemptions == 0:
            request.num_cached_prompt_tokens = match.num_tokens
        if self.kv_cache.enable_prefix_caching:
            plan.num_looked_up_tokens += request.num_tokens
            plan.num_cached_tokens += match.num_tokens

    def _explain_budget(self, plan: PlanDraft, request: Request, decision: Decision, tokens: int, wanted: int) -> None:
        budget = self.limits.max_num_batched_tokens
        plan.explain(request, decision, Reason.TOKEN_BUDGET, tokens=tokens, wanted_tokens=wanted, budget=budget)

    def _share_of(self, request: Request, plan: PlanDraft) -> ScheduledRequest:
        tables = self.kv_cache.block_tables(request.request_id)
        return share_of(request, plan.shares[request.request_id], tables, self.eos_token_ids)

    # -------------------------------------------------------------------------------- update

    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> StepResult:
        """Take over what the step computed: counters, sampled tokens, and who is done; see `Update`."""
        update = Update(self.roster, self.kv_cache, self.limits, self.eos_token_ids)
        update.result.finished += self._failed_in_plan
        self._failed_in_plan = []
        update.take(plan, output)
        return update.result

    def check_integrity(self) -> None:
        """Assert every invariant of queues, tables and pool."""
        self.roster.check_integrity()
