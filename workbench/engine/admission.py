"""Who may start now: the rules that keep a waiting request from running. It looks and changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from workbench.engine.kv_cache_manager import KVCacheManager, PrefixMatch
from workbench.engine.plan_draft import PlanDraft
from workbench.engine.policies.admission import AdmissionPolicy
from workbench.engine.request import Request
from workbench.telemetry.records import CacheMiss, Reason

MAX_OVERTAKEN: Final = 16
"""How often later requests may be admitted before one that does not fit; then everyone waits for it."""
MAX_CANDIDATES: Final = 64
"""Requests behind a head that does not fit that are looked at."""

Hindrance = tuple[Reason, dict[str, int]]
"""The rule that keeps a request from starting, with the numbers that it compared."""


class Admission:
    """Judges waiting requests by budget, sequence slots and memory."""

    def __init__(self, kv_cache: KVCacheManager, policy: AdmissionPolicy) -> None:
        """`policy` chooses among those behind a head that does not fit."""
        self.kv_cache = kv_cache
        self.policy = policy

    def hindrance(self, plan: PlanDraft, request: Request, running: Sequence[Request]) -> Hindrance | None:
        """Return what keeps a waiting request from starting; None when nothing does."""
        if plan.num_preempted:
            return Reason.PREEMPTED_THIS_STEP, {"num_preempted": plan.num_preempted}
        if len(running) >= plan.max_num_seqs:
            return Reason.MAX_NUM_SEQS, {"running": len(running), "max_num_seqs": plan.max_num_seqs}
        if plan.budget == 0:
            budget = plan.max_num_batched_tokens
            return Reason.TOKEN_BUDGET, {"tokens": 0, "wanted_tokens": request.num_missing_tokens, "budget": budget}
        needed, free = self.room(request)
        return (Reason.NO_FREE_BLOCKS, {"needed_blocks": needed, "free_blocks": free}) if needed > free else None

    def room(self, request: Request) -> tuple[int, int]:
        """Return how many blocks a waiting request needs beyond what the cache holds of it, and how many there are."""
        match = self.match(request)
        needed = self.kv_cache.blocks_for(request.num_tokens) - len(match.block_ids)
        return needed, self.kv_cache.num_free_blocks - match.num_cached_blocks

    def match(self, request: Request) -> PrefixMatch:
        """Look the beginning of a waiting request's context up in the cache."""
        if request.sampling_params.prompt_logprobs is not None and self.kv_cache.enable_prefix_caching:
            return PrefixMatch(miss=CacheMiss.BYPASSED)
        return self.kv_cache.match(request.request_id, request.token_ids, request.cache_salt)

    def who_fits(self, waiting: Sequence[Request]) -> int | None:
        """Let the policy choose among those behind a head that does not fit; return a place in the queue.

        Nobody is overtaken more than MAX_OVERTAKEN times: that bounds how long a large request waits.
        """
        overtakable = itertools.takewhile(lambda each: each.num_overtaken < MAX_OVERTAKEN, waiting)
        num_candidates = min(sum(1 for _ in overtakable), MAX_CANDIDATES)
        candidates = waiting[1 : num_candidates + 1]
        place = self.policy.choose(map(self._claim, candidates), self.kv_cache.num_free_blocks)
        return None if place is None else place + 1

    def _claim(self, request: Request) -> int:
        """Return how many of the free blocks a waiting request would take, cached ones that it would use included."""
        needed, free = self.room(request)
        return needed + self.kv_cache.num_free_blocks - free
