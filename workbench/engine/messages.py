"""Commands into the engine thread and events out of it: frozen, msgpack-ready data.

Whoever stands outside the engine holds only these, never a `Request`.
"""

from __future__ import annotations

import msgspec

from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import FinishReason, RequestMetrics


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Queue one request. The ids were checked at the door."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    arrival_time_s: float


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End one request now; unknown and ended ids are ignored."""

    request_id: str


class SetLimits(msgspec.Struct, frozen=True, tag=True):
    """Change the settings that a running engine can take over between two steps."""

    max_num_batched_tokens: int
    max_num_seqs: int


Command = Submit | Abort | SetLimits


class TokenEvent(msgspec.Struct, frozen=True, tag=True):
    """New tokens of one request. `text` is what became certain; it may lag behind the tokens."""

    request_id: str
    step_id: int
    token_ids: tuple[int, ...]
    text: str
    num_output_tokens: int


class RequestFinished(msgspec.Struct, frozen=True, tag=True):
    """The one terminal event of a request."""

    request_id: str
    finish_reason: FinishReason
    text: str
    """Text that was held back and is now released; append it to what TokenEvents brought."""
    metrics: RequestMetrics
    stop_reason: str | int | None = None
    """The stop text or token id that ended it."""
    error: str | None = None
    error_type: str | None = None
    """Class name in `workbench.errors`, when finish_reason is `error`."""


Event = TokenEvent | RequestFinished
