"""What a computed step changes: counters, tables, new tokens, and who is done."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from workbench.engine.beam_steps import advance_beams
from workbench.engine.ending import reason_to_end
from workbench.engine.kv_cache_manager import KVCacheManager
from workbench.engine.messages import TokenLogprobs
from workbench.engine.request import Request
from workbench.engine.roster import Roster
from workbench.engine.scheduler_output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from workbench.engine.step_limits import StepLimits
from workbench.telemetry.records import RequestStatus


@dataclass
class StepResult:
    """What a step changed for the outside: new tokens per answer, and requests that ended."""

    new_token_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    new_logprobs: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    num_accepted: dict[str, int] = field(default_factory=dict)
    """Of each request whose draft was verified: drafted tokens that stand. They come first of its new tokens."""
    finished: list[Request] = field(default_factory=list)


class Update:
    """Takes over the results of one plan."""

    def __init__(
        self, roster: Roster, kv_cache: KVCacheManager, limits: StepLimits, eos_token_ids: Collection[int]
    ) -> None:
        self._roster = roster
        self._kv_cache = kv_cache
        self._limits = limits
        self._eos_token_ids = eos_token_ids
        self.result = StepResult()

    def take(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> None:
        """Go through the plan. A result for a request that was aborted or preempted since is discarded."""
        for item in plan.scheduled:
            request = self._roster.requests.get(item.request_id)
            if request is None or request.status is not RequestStatus.RUNNING:
                continue
            if request.num_computed_tokens != item.start_position:
                continue  # preempted and admitted again: this is a result of its former life
            request.draft_token_ids = ()
            if item.draft_token_ids:
                self._take_verified(request, item, output)
                continue
            self._commit(request, item.num_tokens)
            request.prompt_logprobs.extend(output.prompt_logprobs.get(request.request_id, ()))
            if item.num_candidates and request.beams is not None:
                self._take_candidates(request, output)
            elif item.draws:
                self._take_drawn(request, item, output)

    def _take_drawn(self, request: Request, item: ScheduledRequest, output: ModelRunnerOutput) -> None:
        """Answers part here, if there are several; each gets its token."""
        self._roster.part(request)
        for draw in item.draws:
            answer = self._roster.requests.get(draw.request_id)
            if answer is not None:  # else it ended since the plan was made
                self._append(answer, output)
                self._finish_if_complete(answer)

    def _take_candidates(self, request: Request, output: ModelRunnerOutput) -> None:
        assert request.beams is not None
        request.beams.offer(request, output.candidates[request.request_id])
        if request.beams.is_ready:
            answers = advance_beams(request.beams, self._roster)
            self.result.new_token_ids |= {each.request_id: tuple(each.output_token_ids) for each in answers}
            self.result.finished += answers

    def _take_verified(self, request: Request, item: ScheduledRequest, output: ModelRunnerOutput) -> None:
        """Keep what was accepted; the blocks behind it are given back. Nothing behind an end is kept."""
        num_new = len(output.token_ids[request.request_id])
        appended = self._append(request, output)
        num_accepted = min(num_new - 1, len(appended))
        self.result.num_accepted[request.request_id] = num_accepted
        request.num_draft_tokens += len(item.draft_token_ids)
        request.num_accepted_tokens += num_accepted
        self._commit(request, item.num_known_tokens + num_accepted)
        self._kv_cache.truncate(request.request_id, request.num_computed_tokens)
        self._finish_if_complete(request)

    def _commit(self, request: Request, num_tokens: int) -> None:
        request.num_computed_tokens += num_tokens
        self._kv_cache.commit(
            request.request_id, request.num_computed_tokens, num_tokens, request.token_ids, request.cache_salt
        )

    def _append(self, request: Request, output: ModelRunnerOutput) -> tuple[int, ...]:
        """Append sampled tokens up to the first that ends the request; return those appended."""
        name, limit = request.request_id, self._limits.max_model_len
        appended = token_ids = output.token_ids[name]
        for count, token_id in enumerate(token_ids, start=1):
            request.token_ids.append(token_id)
            request.finish_reason = reason_to_end(request, token_id, self._eos_token_ids, limit)
            if request.finish_reason is not None:
                appended = token_ids[:count]
                break
        self.result.new_token_ids[name] = appended
        if name in output.logprobs:
            self.result.new_logprobs[name] = output.logprobs[name][: len(appended)]
        return appended

    def _finish_if_complete(self, request: Request) -> None:
        if request.finish_reason is not None:
            self._roster.finish(request, RequestStatus.FINISHED, request.finish_reason)
            self.result.finished.append(request)
