"""What `LLM.generate` returns, in vLLM's shape."""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.telemetry.records import FinishReason, RequestMetrics


@dataclass(frozen=True)
class Logprob:
    """Log-probability of one token at one position."""

    logprob: float
    rank: int
    """1 for the most likely token."""
    decoded_token: str


Logprobs = tuple[dict[int, Logprob], ...]
"""Per position: token id → log-probability; the chosen token is always among them."""


@dataclass(frozen=True)
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    logprobs: Logprobs | None = None
    metrics: RequestMetrics | None = field(default=None, compare=False)
    beam_score: float | None = None
    """Beam search: sum of the tokens' log-probabilities over length to the power of the length penalty."""


@dataclass(frozen=True)
class RequestOutput:
    """A prompt with its answers."""

    request_id: str
    """Name of the first answer; the others are called `r1.1`, `r1.2`, … after it."""
    prompt: str | None
    """None when the prompt was given as token ids."""
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    """By index: as drawn with seed, seed + 1, …; those of a beam search best first."""
    metrics: RequestMetrics
    """Of the first answer."""
    prompt_logprobs: tuple[dict[int, Logprob] | None, ...] | None = None
    """One per prompt token; None for the first, which nothing predicts."""
    finished: bool = True
