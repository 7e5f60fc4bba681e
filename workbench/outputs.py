"""What `LLM.generate` returns, in vLLM's shape."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.telemetry.records import FinishReason, RequestMetrics


@dataclass(frozen=True)
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None


@dataclass(frozen=True)
class RequestOutput:
    """A prompt with its answers."""

    request_id: str
    prompt: str | None
    """None when the prompt was given as token ids."""
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    metrics: RequestMetrics
    finished: bool = True
