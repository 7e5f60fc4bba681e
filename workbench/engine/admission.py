"""Who may start now: the rules that keep a waiting request from running. It looks and changes nothing."""

from __future__ import annotations

import itertools
from typing import Final

from workbench.engine.block_key import common_length
from workbench.engine.context_lookup import PrefixMatch
from workbench.engine.plan_draft import PlanDraft
from workbench.engine.policies.admission import AdmissionPolicy
from workbench.engine.request import Request
from workbench.engine.room import Demand, Room
from workbench.engine.roster import Roster
from workbench.engine.step_limits import StepLimits
from workbench.telemetry.records import Reason

MAX_OVERTAKEN: Final = 16
"""How often later requests may be admitted before one that does not fit; then everyone waits for it."""
MAX_CANDIDATES: Final = 64
"""Requests behind a head that does not fit that are looked at."""

Hindrance = tuple[Reason, dict[str, int]]
"""The rule that keeps a request from starting, with the numbers that it compared."""


class Admission:
    """Judges waiting requests by budget, sequence slots and memory."""

    def __init__(self, roster: Roster, policy: AdmissionPolicy, limits: StepLimits) -> None:
        """`policy` chooses among those behind a head that does not fit."""
        self.roster = roster
        self.kv_cache = roster.kv_cache
        self.policy = policy
        self.limits = limits

    def hindrance(self, plan: PlanDraft, request: Request) -> Hindrance | None:
        """Return what keeps a waiting request from starting; None when nothing does."""
        if plan.num_preempted:
            return Reason.PREEMPTED_THIS_STEP, {"num_preempted": plan.num_preempted}
        if self._has_no_slot(plan, request):
            numbers = {"running": plan.num_sequences, "max_num_seqs": self.limits.max_num_seqs}
            return Reason.MAX_NUM_SEQS, numbers | (
                {"wanted_seqs": request.num_sequences} if request.num_sequences > 1 else {}
            )
        if plan.budget == 0:
            budget = self.limits.max_num_batched_tokens
            return Reason.TOKEN_BUDGET, {"tokens": 0, "wanted_tokens": request.num_missing_tokens, "budget": budget}
        room = self.room(request)
        if room.is_enough:
            return None
        numbers = {"needed_blocks": room.needed_blocks, "free_blocks": room.free_blocks}
        if room.longest_run is None:
            return Reason.NO_FREE_BLOCKS, numbers
        return Reason.NO_FREE_RUN, numbers | {"longest_run": room.longest_run}

    def _has_no_slot(self, plan: PlanDraft, request: Request) -> bool:
        """Answers to one prompt run together even when a limit that was lowered meanwhile has no room for them."""
        is_full = plan.num_sequences + request.num_sequences > self.limits.max_num_seqs
        return is_full and any(each.family != request.family for each in self.roster.running)

    def room(self, request: Request) -> Room:
        """Return what a waiting request needs beyond what the cache holds of it, and what there is."""
        return self.kv_cache.room(self.demand(request), self.match(request))

    def demand(self, request: Request) -> Demand:
        """Return what a request wants to hold when it starts."""
        most_tokens = request.most_tokens(self.limits.max_model_len)
        return Demand(request.num_tokens, most_tokens, self.limits.max_num_batched_tokens)

    def is_too_large(self, num_tokens: int) -> bool:
        """Whether the whole pool cannot hold a context of `num_tokens` tokens."""
        demand = Demand(num_tokens, step_tokens=self.limits.max_num_batched_tokens)
        return self.kv_cache.blocks_for(demand) > self.kv_cache.pool.num_blocks

    def match(self, request: Request) -> PrefixMatch:
        """Look up which beginning of a waiting request's context need not be computed."""
        may_share = request.sampling_params.prompt_logprobs is None
        found = self.kv_cache.match(request.request_id, request.token_ids, request.cache_salt, may_use_cache=may_share)
        if not may_share or request.sampling_params.num_sequences == 1:
            return found
        return self._match_family(request, found)

    def _match_family(self, request: Request, found: PrefixMatch) -> PrefixMatch:
        """Also look among its running siblings, so that answers share blocks again after a preemption, cache or not."""
        for sibling in self.roster.running:
            if sibling.family == request.family:
                num_common = common_length(request.token_ids, sibling.token_ids)
                num_tokens = min(num_common, sibling.num_computed_tokens, request.num_tokens - 1)
                found = self.kv_cache.match_fork(request.request_id, sibling.request_id, num_tokens, found)
        return found

    def who_fits(self) -> int | None:
        """Let the policy choose among those behind a head that does not fit; return a place in the queue.

        Nobody is overtaken more than MAX_OVERTAKEN times: that bounds how long a large request waits.
        """
        waiting = self.roster.waiting
        overtakable = itertools.takewhile(lambda each: each.num_overtaken < MAX_OVERTAKEN, waiting)
        num_candidates = min(sum(1 for _ in overtakable), MAX_CANDIDATES)
        claims = (self.room(each).claim for each in waiting[1 : num_candidates + 1])
        place = self.policy.choose(claims, self.kv_cache.largest_claim)
        return None if place is None else place + 1
