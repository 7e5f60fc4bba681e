"""Asks the proposers for drafts before a step: who wants how many tokens, and by which method."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from workbench.engine.draft_economy import DraftEconomy, Prospect
from workbench.engine.kv_cache_manager import KVCacheManager
from workbench.engine.proposers import Proposers
from workbench.engine.random_numbers import Purpose, uniform
from workbench.engine.request import Request
from workbench.engine.scheduler_output import SchedulerOutput
from workbench.speculation.proposer import Draft, DraftContext, DraftRequest
from workbench.telemetry.records import RequestStatus


@dataclass(frozen=True)
class _Wish:
    """A request that drafts: whom it asks, in turn, for how many tokens."""

    request: Request
    proposers: tuple[str, ...]
    limit: int


class Drafter:
    """The proposers of one engine, what they suggested last, and what came of it."""

    def __init__(
        self,
        proposers: Proposers,
        max_model_len: int,
        measure_step_s: Callable[[Sequence[int]], Mapping[int, float]],
    ) -> None:
        """`measure_step_s`: as in `DraftEconomy`."""
        self._proposers = proposers
        self._max_model_len = max_model_len
        self._economy = DraftEconomy(measure_step_s)
        self.drafts: dict[str, Draft] = {}
        """By request: drafts that are not verified yet."""
        self._source: dict[str, str] = {}
        """By request: which proposer made the draft."""
        self._known: set[str] = set()

    def follow(self, step: DraftContext) -> None:
        """Let all proposers look at what a step computed."""
        for proposer in self._proposers.available.values():
            proposer.follow(step)

    # -------------------------------------------------------------------------------- draft

    def draft(self, requests: Mapping[str, Request], running: Sequence[Request], kv_cache: KVCacheManager) -> None:
        """Have tokens drafted for every running request that wants some and has no draft left from before."""
        self._forget_ended(requests)
        unverified = [request.request_id for request in running if request.draft_token_ids]
        self.drafts = {request_id: self.drafts[request_id] for request_id in unverified}
        wishes = [wish for request in running if (wish := self._wish_of(request)) is not None]
        if not wishes:
            return
        num_rows = sum(max(1, request.num_missing_tokens) for request in running)
        self._known.update(wish.request.request_id for wish in wishes)
        found = self._ask_the_free(wishes, kv_cache)
        counts = self._choose(wishes, found, num_rows)
        for wish, count in zip(wishes, counts, strict=True):
            name = wish.request.request_id
            if name in found:
                self._keep(name, wish.proposers[0], Draft(found[name].token_ids[:count]))
        self._ask_the_others([replace(w, limit=c) for w, c in zip(wishes, counts, strict=True) if c], found, kv_cache)

    def _wish_of(self, request: Request) -> _Wish | None:
        """Who has one token left to compute may draft as many as leave room for one more, in answer and context."""
        is_ready = request.status is RequestStatus.RUNNING and request.num_missing_tokens == 1
        proposers = self._proposers.parts_of(request.speculation.method)
        if not is_ready or not proposers or request.num_output_tokens == 0 or request.request_id in self.drafts:
            return None
        left = request.most_tokens(self._max_model_len) - request.num_tokens - 1
        limit = min(request.speculation.num_speculative_tokens, left)
        return _Wish(request, proposers, limit) if limit > 0 else None

    def _ask_the_free(self, wishes: Iterable[_Wish], kv_cache: KVCacheManager) -> dict[str, Draft]:
        """Drafts of proposers that cost nothing, by request: what they found decides whether the next is asked."""
        asking = [wish for wish in wishes if self._proposers.is_free(wish.proposers[0])]
        drafts = self._propose(asking, 0, kv_cache)
        return {wish.request.request_id: draft for wish, draft in zip(asking, drafts, strict=True) if draft.token_ids}

    def _ask_the_others(self, wishes: Iterable[_Wish], found: Mapping[str, Draft], kv_cache: KVCacheManager) -> None:
        asking = [
            w for w in wishes if w.request.request_id not in found and not self._proposers.is_free(w.proposers[-1])
        ]
        for wish, draft in zip(asking, self._propose(asking, -1, kv_cache), strict=True):
            self._keep(wish.request.request_id, wish.proposers[-1], draft)

    def _propose(self, wishes: Sequence[_Wish], place: int, kv_cache: KVCacheManager) -> list[Draft]:
        """Ask for each wish its proposer at a place, those of one proposer together. Drafts in the order of wishes."""
        drafts: dict[str, Draft] = {}
        for name in dict.fromkeys(wish.proposers[place] for wish in wishes):
            own = [wish for wish in wishes if wish.proposers[place] == name]
            started = time.perf_counter()
            made = self._proposers.available[name].propose([_question(wish, kv_cache) for wish in own])
            longest = max(len(draft.token_ids) for draft in made)  # doubt ends drafts before their limit
            self._economy.observe_draft(name, longest, time.perf_counter() - started)
            drafts |= {wish.request.request_id: draft for wish, draft in zip(own, made, strict=True)}
        return [drafts[wish.request.request_id] for wish in wishes]

    def _choose(self, wishes: Sequence[_Wish], found: Mapping[str, Draft], num_rows: int) -> list[int]:
        """Tokens to draft for each: what was asked for, or what pays where the request leaves it to us."""
        prospects = []
        for wish in wishes:
            draft = found.get(wish.request.request_id)
            limit = wish.limit if draft is None else len(draft.token_ids)
            proposer = wish.proposers[-1] if draft is None else wish.proposers[0]
            is_futile = draft is None and self._proposers.is_free(proposer)
            prospects.append(Prospect(wish.request.request_id, proposer, 0 if is_futile else limit))
        adapting = [
            p for w, p in zip(wishes, prospects, strict=True) if p.limit and w.request.speculation.speculative_adaptive
        ]
        num_fixed = sum(prospect.limit for prospect in prospects) - sum(prospect.limit for prospect in adapting)
        chosen = {
            p.request_id: count
            for p, count in zip(adapting, self._economy.choose(adapting, num_rows + num_fixed), strict=True)
        }
        return [chosen.get(prospect.request_id, prospect.limit) for prospect in prospects]

    def _keep(self, request_id: str, proposer: str, draft: Draft) -> None:
        if draft.token_ids:
            self.drafts[request_id], self._source[request_id] = draft, proposer

    # -------------------------------------------------------------------------------- learn

    def learn(self, plan: SchedulerOutput, num_accepted: Mapping[str, int], execute_s: float) -> None:
        """Note what became of a step's drafts, and how long the step took."""
        for item in plan.scheduled:
            if item.request_id in num_accepted:
                proposer, count = self._source[item.request_id], len(item.draft_token_ids)
                self._economy.observe_verdict(item.request_id, proposer, count, num_accepted[item.request_id])
        if plan.scheduled and not any(item.is_prefill for item in plan.scheduled):
            self._economy.observe_step(plan.num_tokens, execute_s)

    def _forget_ended(self, requests: Mapping[str, Request]) -> None:
        """State of one request must not reach the next, though that may have the same name."""
        for request_id in self._known - requests.keys():
            self._known.discard(request_id)
            self._source.pop(request_id, None)
            self._economy.forget(request_id)
            for proposer in self._proposers.available.values():
                proposer.forget(request_id)


def _question(wish: _Wish, kv_cache: KVCacheManager) -> DraftRequest:
    request, params = wish.request, wish.request.speculation
    temperature = request.sampling_params.temperature
    positions = np.arange(request.num_output_tokens, request.num_output_tokens + wish.limit)
    seeds = np.full(wish.limit, request.seed, dtype=np.uint64)
    return DraftRequest(
        request_id=request.request_id,
        token_ids=request.token_ids,
        num_tokens=wish.limit,
        prompt_lookup=(params.prompt_lookup_min, params.prompt_lookup_max),
        block_tables=kv_cache.block_tables(request.request_id),
        temperature=temperature,
        least_confidence=params.draft_confidence,
        uniforms=uniform(seeds, positions, Purpose.DRAFT).tolist() if temperature > 0 else (0.0,) * wish.limit,
    )
