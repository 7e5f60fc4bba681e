"""When an answer is complete."""

from __future__ import annotations

from collections.abc import Collection

from workbench.engine.request import Request
from workbench.telemetry.records import FinishReason


def reason_to_end(
    request: Request, token_id: int, eos_token_ids: Collection[int], max_model_len: int
) -> FinishReason | None:
    """Return why the token just appended, `token_id`, is the last of the answer; None when it is not.

    Feeds the token to the request's text, and notes on the request which stop id or text ended it.
    """
    params = request.sampling_params
    may_stop = request.num_output_tokens > params.min_tokens
    stop_text = request.text.push(token_id, may_stop) if request.text is not None else None
    if token_id in eos_token_ids and not params.ignore_eos:
        return FinishReason.STOP
    if token_id in params.stop_ids:
        request.stop_reason = token_id
        return FinishReason.STOP
    if stop_text is not None:
        request.stop_reason = stop_text
        return FinishReason.STOP
    if request.num_output_tokens == params.max_tokens or request.num_tokens >= max_model_len:
        return FinishReason.LENGTH
    return None
