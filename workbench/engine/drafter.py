"""Asks the proposers for drafts before a step: who wants how many tokens, by which method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from workbench.engine.kv_cache_manager import KVCacheManager
from workbench.engine.random_numbers import Purpose, uniform
from workbench.engine.request import Request
from workbench.speculation.proposer import Draft, DraftContext, DraftRequest, Proposer
from workbench.telemetry.records import RequestStatus


class Drafter:
    """The proposers of one engine, and what they suggested last."""

    def __init__(self, proposers: Mapping[str, Proposer], max_model_len: int) -> None:
        """`proposers`: by method, those that this engine can offer."""
        self._proposers = proposers
        self._max_model_len = max_model_len
        self.drafts: dict[str, Draft] = {}
        """By request: drafts that are not verified yet."""
        self._known: set[str] = set()

    def follow(self, step: DraftContext) -> None:
        """Let all proposers look at what a step computed."""
        for proposer in self._proposers.values():
            proposer.follow(step)

    def draft(self, requests: Mapping[str, Request], running: Iterable[Request], kv_cache: KVCacheManager) -> None:
        """Have tokens drafted for every running request that wants some and has no draft left from before."""
        self._forget_ended(requests)
        wanting: dict[str, list[DraftRequest]] = {}
        for request in running:
            if not request.draft_token_ids:
                self.drafts.pop(request.request_id, None)
            num_tokens = self._num_wanted(request)
            if num_tokens > 0 and request.request_id not in self.drafts:
                asked = _ask(request, num_tokens, kv_cache)
                wanting.setdefault(request.speculation.method, []).append(asked)
        for method, asked_all in wanting.items():
            self._known.update(asked.request_id for asked in asked_all)
            drafts = self._proposers[method].propose(asked_all)
            self.drafts |= {
                asked.request_id: draft for asked, draft in zip(asked_all, drafts, strict=True) if draft.token_ids
            }

    def _num_wanted(self, request: Request) -> int:
        """Tokens to draft: behind them must be room for one more, in the answer and in the context."""
        is_ready = request.status is RequestStatus.RUNNING and request.num_missing_tokens == 1
        if not is_ready or request.num_output_tokens == 0 or request.speculation.method not in self._proposers:
            return 0
        left = request.most_tokens(self._max_model_len) - request.num_tokens - 1
        return min(request.speculation.num_speculative_tokens, left)

    def _forget_ended(self, requests: Mapping[str, Request]) -> None:
        """State of one request must not reach the next, though that may have the same name."""
        for request_id in self._known - requests.keys():
            self._known.discard(request_id)
            self.drafts.pop(request_id, None)
            for proposer in self._proposers.values():
                proposer.forget(request_id)


def _ask(request: Request, num_tokens: int, kv_cache: KVCacheManager) -> DraftRequest:
    wishes, temperature = request.speculation, request.sampling_params.temperature
    positions = np.arange(request.num_output_tokens, request.num_output_tokens + num_tokens)
    seeds = np.full(num_tokens, request.seed, dtype=np.uint64)
    return DraftRequest(
        request_id=request.request_id,
        token_ids=request.token_ids,
        num_tokens=num_tokens,
        prompt_lookup=(wishes.prompt_lookup_min, wishes.prompt_lookup_max),
        block_tables=kv_cache.block_tables(request.request_id),
        temperature=temperature,
        uniforms=uniform(seeds, positions, Purpose.DRAFT).tolist() if temperature > 0 else (0.0,) * num_tokens,
    )
