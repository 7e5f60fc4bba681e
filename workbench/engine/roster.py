"""Who there is: the requests that run, wait or stand by, and every way in, out and between.

The scheduler decides, the roster carries it out: it keeps status, queue and blocks of a request in step. A
request stands in exactly one place: it runs, it waits, or it is parked (an answer that has not parted
from the one that computes their common prompt, or a beam that is out of use).
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from workbench.engine.kv_cache_manager import KVCacheManager
from workbench.engine.policies import SchedulingPolicy
from workbench.engine.request import Request
from workbench.telemetry.records import FinishReason, RequestStatus


class Roster:
    """All requests of a scheduler, and its two queues."""

    def __init__(self, kv_cache: KVCacheManager, policy: SchedulingPolicy) -> None:
        """The waiting queue is kept in the policy's order."""
        self.kv_cache = kv_cache
        self.policy = policy
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    # ---------------------------------------------------------------------------- in and out

    def add(self, request: Request, partners: Sequence[Request]) -> None:
        """Queue a request; its partners stand by until they part from it."""
        for each in (request, *partners):
            assert each.request_id not in self.requests, f"{each.request_id} exists already"
            self.requests[each.request_id] = each
        for partner in partners:
            partner.is_parked = True
        request.partners = list(partners)
        self._enqueue(request)

    def finish(self, request: Request, status: RequestStatus, reason: FinishReason) -> None:
        """The one way out: leave the queues, give everything back, settle the text."""
        if request.is_parked:
            self._forget_partner(request)
        else:
            self._queue_of(request).remove(request)
        self.kv_cache.forget(request.request_id)
        del self.requests[request.request_id]
        request.status = status
        request.finish_reason = reason
        if request.text is not None:
            request.text.flush()

    def _forget_partner(self, partner: Request) -> None:
        for request in (*self.running, *self.waiting):
            if partner in request.partners:
                request.partners.remove(partner)

    # ------------------------------------------------------------------------ between queues

    def start(self, place: int) -> Request:
        """Let the request at a place of the waiting queue run; those before it are overtaken."""
        request = self.waiting.pop(place)
        for earlier in self.waiting[:place]:
            earlier.num_overtaken += 1
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        request.num_overtaken = 0
        return request

    def preempt(self, request: Request, num_swapped_tokens: int) -> None:
        """Take a running request's blocks and queue it again; `num_swapped_tokens` are kept where there is room."""
        is_kept = num_swapped_tokens > 0 and self.kv_cache.swap_out(request.request_id, num_swapped_tokens)
        if not is_kept:
            self.kv_cache.free(request.request_id)
        self.running.remove(request)
        request.num_computed_tokens = 0
        request.draft_token_ids = ()
        request.num_preemptions += 1
        request.status = RequestStatus.SWAPPED if is_kept else RequestStatus.PREEMPTED
        self._enqueue(request)

    def lose_swapped(self, request: Request) -> None:
        """Forget what lies of a request in host memory: it will be computed again."""
        if request.status is RequestStatus.SWAPPED:
            self.kv_cache.swap_space.give_back(request.request_id)
            request.status = RequestStatus.PREEMPTED

    def _enqueue(self, request: Request) -> None:
        bisect.insort(self.waiting, request, key=self.policy.waiting_key)

    def _queue_of(self, request: Request) -> list[Request]:
        return self.running if request.status is RequestStatus.RUNNING else self.waiting

    # --------------------------------------------------------------------- answers and beams

    def fork(self, source: Request, request: Request) -> None:
        """Let a request go on from where a running one stands; its own blocks, if any, are given up."""
        self.kv_cache.free(request.request_id)
        self.kv_cache.fork(source.request_id, request.request_id)
        request.token_ids = list(source.token_ids)
        request.num_computed_tokens = source.num_computed_tokens
        if request.is_parked:
            request.is_parked = False
            request.status = RequestStatus.RUNNING
            self.running.insert(self.running.index(source) + 1, request)

    def part(self, request: Request) -> None:
        """Let the further answers to a running request's prompt share its blocks and run by themselves."""
        partners, request.partners = request.partners, []
        for partner in reversed(partners):  # each comes right behind the request, so they run in order
            self.fork(request, partner)
            partner.inherit(request)

    def park(self, request: Request) -> None:
        """Take a running beam out of use."""
        self.running.remove(request)
        self.kv_cache.free(request.request_id)
        request.is_parked = True
        request.status = RequestStatus.WAITING
        request.num_computed_tokens = 0

    def hand_over(self, request: Request) -> None:
        """Let the next answer compute the prompt in the place of one that will end before they part."""
        heir, *others = request.partners
        request.partners, heir.partners = [], others
        heir.inherit(request)
        heir.status, heir.num_computed_tokens = request.status, request.num_computed_tokens
        heir.num_preemptions, heir.num_overtaken = request.num_preemptions, request.num_overtaken
        self.kv_cache.hand_over(request.request_id, heir.request_id)
        queue = self._queue_of(request)
        queue[queue.index(request)] = heir
        heir.is_parked, request.is_parked = False, True
        request.num_computed_tokens = 0

    # ------------------------------------------------------------------------------- checks

    def check_integrity(self) -> None:
        """Assert that every request stands in one place and holds the blocks that it needs there."""
        parked = [request for request in self.requests.values() if request.is_parked]
        known = [request.request_id for request in (*self.running, *self.waiting, *parked)]
        assert sorted(known) == sorted(self.requests), f"queues hold {known}, requests are {list(self.requests)}"
        for request in (*self.waiting, *parked):
            assert request.num_computed_tokens == 0 and not self.kv_cache.num_blocks_of(request.request_id)
            is_swapped = request.request_id in self.kv_cache.swap_space.contexts
            assert is_swapped == (request.status is RequestStatus.SWAPPED)
        for request in parked:
            assert request.beams is not None or any(request in each.partners for each in (*self.running, *self.waiting))
        for request in self.running:
            assert self.kv_cache.blocks_needed(request.request_id, request.num_computed_tokens) == 0
            waits = request.beams is not None and request.beams.has_offered(request)
            assert waits or request.num_missing_tokens > 0, f"{request.request_id} runs with nothing to compute"
        self.kv_cache.check_integrity()
