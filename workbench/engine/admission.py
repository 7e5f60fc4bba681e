"""Who may start now: the rules that keep a waiting request from running. It looks and changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from workbench.engine.kv_cache_manager import KVCacheManager, Room
from workbench.engine.plan_draft import PlanDraft
from workbench.engine.policies.admission import AdmissionPolicy
from workbench.engine.prefix_cache import PrefixMatch
from workbench.engine.request import Request
from workbench.telemetry.records import Reason

MAX_OVERTAKEN: Final = 16
"""How often later requests may be admitted before one that does not fit; then everyone waits for it."""
MAX_CANDIDATES: Final = 64
"""Requests behind a head that does not fit that are looked at."""

Hindrance = tuple[Reason, dict[str, int]]
"""The rule that keeps a request from starting, with the numbers that it compared."""


class Admission:
    """Judges waiting requests by budget, sequence slots and memory."""

    def __init__(self, kv_cache: KVCacheManager, policy: AdmissionPolicy, max_model_len: int) -> None:
        """`policy` chooses among those behind a head that does not fit."""
        self.kv_cache = kv_cache
        self.policy = policy
        self.max_model_len = max_model_len

    def hindrance(self, plan: PlanDraft, request: Request, running: Sequence[Request]) -> Hindrance | None:
        """Return what keeps a waiting request from starting; None when nothing does."""
        if plan.num_preempted:
            return Reason.PREEMPTED_THIS_STEP, {"num_preempted": plan.num_preempted}
        if self._has_no_slot(plan, request, running):
            numbers = {"running": plan.num_sequences, "max_num_seqs": plan.max_num_seqs}
            return Reason.MAX_NUM_SEQS, numbers | (
                {"wanted_seqs": request.num_sequences} if request.num_sequences > 1 else {}
            )
        if plan.budget == 0:
            budget = plan.max_num_batched_tokens
            return Reason.TOKEN_BUDGET, {"tokens": 0, "wanted_tokens": request.num_missing_tokens, "budget": budget}
        room = self.room(request)
        if room.is_enough:
            return None
        numbers = {"needed_blocks": room.needed_blocks, "free_blocks": room.free_blocks}
        if room.longest_run is None:
            return Reason.NO_FREE_BLOCKS, numbers
        return Reason.NO_FREE_RUN, numbers | {"longest_run": room.longest_run}

    @staticmethod
    def _has_no_slot(plan: PlanDraft, request: Request, running: Sequence[Request]) -> bool:
        """Answers to one prompt run together even when a limit that was lowered meanwhile has no room for them."""
        is_full = plan.num_sequences + request.num_sequences > plan.max_num_seqs
        return is_full and any(each.family != request.family for each in running)

    def room(self, request: Request) -> Room:
        """Return what a waiting request needs beyond what the cache holds of it, and what there is."""
        return self.kv_cache.room(request.num_tokens, self.match(request), request.most_tokens(self.max_model_len))

    def match(self, request: Request) -> PrefixMatch:
        """Look up which beginning of a waiting request's context need not be computed."""
        return self.kv_cache.match(
            request.request_id,
            request.token_ids,
            request.cache_salt,
            may_use_cache=request.sampling_params.prompt_logprobs is None,
        )

    def who_fits(self, waiting: Sequence[Request]) -> int | None:
        """Let the policy choose among those behind a head that does not fit; return a place in the queue.

        Nobody is overtaken more than MAX_OVERTAKEN times: that bounds how long a large request waits.
        """
        overtakable = itertools.takewhile(lambda each: each.num_overtaken < MAX_OVERTAKEN, waiting)
        num_candidates = min(sum(1 for _ in overtakable), MAX_CANDIDATES)
        claims = (self.room(each).claim for each in waiting[1 : num_candidates + 1])
        place = self.policy.choose(claims, self.kv_cache.largest_claim)
        return None if place is None else place + 1
