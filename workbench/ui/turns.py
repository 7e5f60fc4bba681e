"""A conversation as plain data: its turns, how it is cut, and when it fills the context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.engine.service import EngineService
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import FinishReason, RequestMetrics


@dataclass(frozen=True)
class AnswerStats:
    """Figures under an answer. Times in seconds; None where there is no figure yet."""

    ttft_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None
    tokens_per_s: float | None = None
    num_prompt_tokens: int | None = None
    num_output_tokens: int = 0
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    """None while the answer streams."""
    num_cached_tokens: int = 0
    """Prompt tokens that were found in the prefix cache."""

    @classmethod
    def from_metrics(cls, metrics: RequestMetrics, finish_reason: FinishReason) -> AnswerStats:
        """Return the engine's own figures for an ended request."""
        return cls(
            ttft_s=metrics.ttft_s,
            itl_p50_s=metrics.itl_p50_s,
            itl_p95_s=metrics.itl_p95_s,
            tokens_per_s=1 / metrics.tpot_s if metrics.tpot_s else None,
            num_prompt_tokens=metrics.num_prompt_tokens,
            num_cached_tokens=metrics.num_cached_tokens,
            num_output_tokens=metrics.num_output_tokens,
            num_preemptions=metrics.num_preemptions,
            finish_reason=finish_reason,
        )


@dataclass(frozen=True)
class ChatError:
    """Why there is no (complete) answer: one message for the page, and what kind of error it was."""

    message: str
    is_context_full: bool = False
    """Dropping the oldest turns would help."""


@dataclass(frozen=True)
class AnswerSettings:
    """What an answer was asked for with."""

    model_name: str
    system_prompt: str
    params: SamplingParams


@dataclass(frozen=True)
class Turn:
    """One message of a conversation."""

    role: Literal["user", "assistant"]
    text: str
    stats: AnswerStats | None = None
    error: ChatError | None = None
    settings: AnswerSettings | None = None
    """None for a visitor's message, and for an answer whose settings were refused."""


Conversation = tuple[Turn, ...]


def chat_messages(conversation: Conversation, system_prompt: str) -> list[dict[str, str]]:
    """Return the conversation as the chat template wants it. Turns without text are left out."""
    messages = [{"role": "system", "content": system_prompt.strip()}] if system_prompt.strip() else []
    return messages + [{"role": turn.role, "content": turn.text} for turn in conversation if turn.text]


def without_last_answer(conversation: Conversation) -> Conversation:
    """Return the conversation up to and with the last user message (Regenerate)."""
    for index in range(len(conversation) - 1, -1, -1):
        if conversation[index].role == "user":
            return conversation[: index + 1]
    return ()


def with_edited_message(conversation: Conversation, index: int | None, text: str) -> Conversation:
    """Return the conversation up to message `index`, which is a visitor's, with `text` in its place.

    Without an index, or with one that is no visitor's message any more, `text` comes at the end.
    """
    is_known = index is not None and 0 <= index < len(conversation) and conversation[index].role == "user"
    return (*(conversation[:index] if is_known else conversation), Turn("user", text))


def num_questions(conversation: Conversation) -> int:
    """Messages of the visitor."""
    return sum(turn.role == "user" for turn in conversation)


def context_limit(service: EngineService) -> int:
    """Most tokens that a request may hold, prompt and answer together."""
    status = service.status
    return min(status.max_model_len, status.num_blocks * status.block_size)


def context_full_note(service: EngineService, conversation: Conversation) -> str:
    """Say that the conversation fills the context, and what helps; empty when it does not."""
    last = conversation[-1] if conversation else None
    if last is None or last.stats is None:
        return ""
    used = (last.stats.num_prompt_tokens or 0) + last.stats.num_output_tokens
    limit = context_limit(service)
    if last.error is not None and last.error.is_context_full:
        words = f"The context is full: it holds {limit:,} tokens."
    elif last.stats.finish_reason is FinishReason.LENGTH and used >= limit:
        words = f"The context is full: the answer ended at {used:,} of {limit:,} tokens."
    else:
        return ""
    if num_questions(conversation) > 1:
        return f"{words} Drop the oldest turns to make room; the last message is then answered again."
    return f"{words} Shorten the message, or start a new chat."


def drop_oldest_turns(
    service: EngineService, conversation: Conversation, system_prompt: str, max_tokens: int | None
) -> Conversation:
    """Return the conversation without its oldest exchange, and without more of them until prompt and answer fit.

    The last user message always stays. Room is left for `max_tokens`, at most half of the context.
    """
    limit = context_limit(service)
    room = min(max_tokens or limit // 2, limit // 2)
    kept = conversation
    while num_questions(kept) > 1:
        kept = kept[1:]
        while kept[0].role != "user":
            kept = kept[1:]
        if len(service.tokenizer.encode_chat(chat_messages(kept, system_prompt))) + room <= limit:
            break
    return kept
