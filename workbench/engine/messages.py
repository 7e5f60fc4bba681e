"""Commands into the engine thread and events out of it: frozen, msgpack-ready data.

Whoever stands outside the engine holds only these, never a `Request`.
"""

from __future__ import annotations

import enum

import msgspec

from workbench.sampling_params import SamplingParams
from workbench.speculation_params import NO_SPECULATION, SpeculationParams
from workbench.telemetry.records import BlockStatus, FinishReason, RequestMetrics


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Queue one request. Everything in it was checked at the door."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    arrival_time_s: float
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    """The bad words of the parameters as token sequences."""
    priority: int = 0
    """Lower runs first, where the scheduling policy looks at it."""
    cache_salt: str = ""
    """Requests with different salts never share cached blocks."""
    speculation: SpeculationParams = NO_SPECULATION


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End one request now; unknown and ended ids are ignored."""

    request_id: str


class Preempt(msgspec.Struct, frozen=True, tag=True):
    """Preempt one request, to see it wait and go on; one that does not run is left alone."""

    request_id: str


class SetLimits(msgspec.Struct, frozen=True, tag=True):
    """Change the settings that a running engine can take over between two steps."""

    max_num_batched_tokens: int
    max_num_seqs: int
    enable_prefix_caching: bool


Command = Submit | Abort | Preempt | SetLimits


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token and of the most likely ones at its position."""

    token_id: int
    logprob: float
    rank: int
    """1 for the most likely token."""
    top: tuple[tuple[int, float], ...]
    """(token id, log-probability) of the most likely tokens, best first."""


def answer_id(request_id: str, index: int) -> str:
    """Return the name of a request's answer number `index`; the first has the request's own name.

    Each answer is a sequence with blocks, events and records of its own.
    """
    return request_id if index == 0 else f"{request_id}.{index}"


class TokenEvent(msgspec.Struct, frozen=True, tag=True):
    """New tokens of one answer. `text` is what became certain; it may lag behind the tokens."""

    request_id: str
    """Name of the answer: `answer_id(request, index)`."""
    step_id: int
    token_ids: tuple[int, ...]
    text: str
    num_output_tokens: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each token, when asked for."""
    index: int = 0
    """Which of the request's answers."""
    num_draft_tokens: int = 0
    """Drafted tokens that the step verified for it."""
    num_accepted_tokens: int = 0
    """The first of `token_ids`, which were drafted. The next one is recovered, or bonus when all were accepted."""


class RequestFinished(msgspec.Struct, frozen=True, tag=True):
    """The one terminal event of an answer. A request with n answers ends with n of them."""

    request_id: str
    """Name of the answer: `answer_id(request, index)`."""
    finish_reason: FinishReason
    text: str
    """Text that was held back and is now released; append it to what TokenEvents brought."""
    metrics: RequestMetrics
    stop_reason: str | int | None = None
    """The stop text or token id that ended it."""
    error: str | None = None
    error_type: str | None = None
    """Class name in `workbench.errors`, when finish_reason is `error`."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each prompt token but the first, when asked for."""
    index: int = 0
    """Which of the request's answers."""
    beam_score: float | None = None
    """Beam search: sum of the tokens' log-probabilities over length to the power of the length penalty."""


Event = TokenEvent | RequestFinished


class ServiceState(enum.StrEnum):
    """Where the engine behind the door stands."""

    LOADING = "loading"
    READY = "ready"
    RELOADING = "reloading"
    FAILED = "failed"
    STOPPED = "stopped"


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of what the service is and does, for headers, health checks and error banners."""

    state: ServiceState
    phase: str = ""
    """What a load is doing, in words; empty when nothing is loading."""
    done_bytes: int = 0
    total_bytes: int = 0
    error: str | None = None
    """The last load error or engine exception, with its remedy."""
    error_traceback: str | None = None
    model_name: str = ""
    source_format: str = ""
    dtype: str = ""
    backend: str = ""
    device: str = "cpu"
    notices: tuple[str, ...] = ()
    """Features that were asked for and are not active, each with the reason."""
    epoch: int = 0
    num_blocks: int = 0
    block_size: int = 0
    block_bytes: int = 0
    kv_cache_bytes: int = 0
    weight_bytes: int = 0
    max_model_len: int = 0
    vocab_size: int = 0
    most_context_tokens: int = 0
    """Most tokens that one request can hold, prompt and answer together: what context and pool allow."""
    num_swap_blocks: int = 0
    """Blocks that the swap space holds, 0 where preemption only recomputes."""
    speculation: dict[str, str] = {}
    """Methods of drafting, each with the reason why this engine cannot offer it, empty when it can."""


class BlockDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One physical block in full, on demand."""

    block_id: int
    status: BlockStatus
    ref_count: int
    num_filled: int
    request_ids: tuple[str, ...]
    logical_index: int
    """Position in the first owner's table, -1 when free."""
    first_position: int
    """Position in the context of the block's first slot, -1 when free."""
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    """The filled slots, each decoded by itself."""
    num_bytes: int
    step_id: int
