"""One request's part of a step as plain data: its tokens, and what the sampler must know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workbench.engine.request import Request
from workbench.engine.row_rules import RowRules
from workbench.engine.scheduler_output import Draw, ScheduledRequest


def share_of(
    request: Request, num_tokens: int, block_tables: tuple[tuple[int, ...], ...], eos_token_ids: Iterable[int]
) -> ScheduledRequest:
    """Return the plan's entry for the next `num_tokens` tokens of a request: known ones, then drafted ones."""
    start = request.num_computed_tokens
    num_known = min(num_tokens, request.num_missing_tokens)
    end = start + num_known
    samples = end == request.num_tokens
    drafted = request.draft_token_ids[: num_tokens - num_known]
    return ScheduledRequest(
        request_id=request.request_id,
        token_ids=(*request.token_ids[start:end], *drafted),
        start_position=start,
        block_tables=block_tables,
        is_prefill=end - start > 1 or request.num_output_tokens == 0 or end < request.num_tokens,
        sampling_params=request.sampling_params,
        output_position=request.num_output_tokens,
        draws=_draws_of(request) if samples and request.beams is None else (),
        num_candidates=request.beams.num_candidates if samples and request.beams is not None else 0,
        rules=_rules_of(request, drafted, eos_token_ids) if samples else (),
        draft_token_ids=drafted,
        **_prompt_targets(request, start, end),
    )


def _draws_of(request: Request) -> tuple[Draw, ...]:
    """A token for the request, and one for each answer that parts from it here."""
    own = Draw(request.request_id, request.seed)
    return (own, *(Draw(each.request_id, each.seed) for each in request.partners)) if request.partners else (own,)


def _rules_of(request: Request, drafted: tuple[int, ...], eos_token_ids: Iterable[int]) -> tuple[RowRules, ...]:
    """What constrains the next token, and the one behind each drafted token; empty when nothing does."""
    params = request.sampling_params
    num_held = max(0, params.min_tokens - request.num_output_tokens)
    if not (num_held or params.needs_context or params.logit_bias or params.allowed_token_ids is not None):
        return ()
    held_back_ids = tuple(sorted({*eos_token_ids, *params.stop_ids})) if num_held else ()
    return tuple(
        RowRules(
            params,
            context=(*request.token_ids, *drafted[:offset]) if params.needs_context else (),
            num_prompt_tokens=request.num_prompt_tokens,
            held_back_ids=held_back_ids if offset < num_held else (),
            bad_word_ids=request.bad_word_ids,
        )
        for offset in range(len(drafted) + 1)
    )


def _prompt_targets(request: Request, start: int, end: int) -> dict[str, Any]:
    """Prompt tokens that rows start … end - 1 predict and that are not reported yet."""
    if request.sampling_params.prompt_logprobs is None:
        return {}
    first = max(start, len(request.prompt_logprobs))
    last = min(end, request.num_prompt_tokens - 1)
    targets = tuple(request.token_ids[first + 1 : last + 1])
    return {"prompt_targets": targets, "first_target_row": first - start}
