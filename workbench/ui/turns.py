"""A conversation as plain data: its turns, how it is cut, and when it fills the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from workbench.engine.service import EngineService
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import NO_SPECULATION, SpeculationParams
from workbench.telemetry.records import CacheMiss, FinishReason, RequestMetrics
from workbench.ui.answer_trace import AnswerTrace
from workbench.ui.texts import ENGLISH, Texts


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
    cache_miss: CacheMiss | None = None
    """Why they are not more; None when all that could be shared was found, or when it is not known."""
    differs_at: int | None = None
    """For `CacheMiss.DIFFERS`: the first position whose token differs from what was cached."""
    num_swaps: int = 0
    """Preemptions that kept the context in host memory."""
    e2e_s: float | None = None
    """From arrival to end."""
    beam_score: float | None = None
    """Beam search: the score that the answers are ranked by."""
    num_draft_tokens: int = 0
    """Drafted tokens that were verified for it."""
    num_accepted_tokens: int = 0
    """Those of them that it holds."""

    @classmethod
    def from_metrics(cls, metrics: RequestMetrics, finish_reason: FinishReason) -> AnswerStats:
        """Return the engine's own figures for an ended answer."""
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
            e2e_s=metrics.e2e_s,
            num_draft_tokens=metrics.num_draft_tokens,
            num_accepted_tokens=metrics.num_accepted_tokens,
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
    priority: int = 0
    """Lower runs first, where the scheduling policy looks at it."""
    speculation: SpeculationParams = NO_SPECULATION


@dataclass(frozen=True)
class Answer:
    """One of the answers to a message."""

    text: str
    stats: AnswerStats
    error: ChatError | None = None
    trace: AnswerTrace | None = None
    """None until it has ended, and where the engine has not begun it."""


@dataclass(frozen=True)
class Turn:
    """One message of a conversation."""

    role: Literal["user", "assistant"]
    text: str
    stats: AnswerStats | None = None
    error: ChatError | None = None
    settings: AnswerSettings | None = None
    """None for a visitor's message, and for an answer whose settings were refused."""
    answers: tuple[Answer, ...] = ()
    """All answers, where several were asked for; text, figures and error are then those of the chosen one."""
    chosen: int = 0
    """Which of the answers the conversation goes on with."""
    trace: AnswerTrace | None = None
    """Of the chosen answer."""
    shown_as_tokens: frozenset[int] = frozenset()
    """Places of the answers that the page shows as tokens; a single answer has the place 0."""

    @classmethod
    def of_answers(cls, answers: Sequence[Answer], chosen: int = 0) -> Turn:
        """Return the answers to a message as a turn."""
        first = answers[chosen]
        several = tuple(answers) if len(answers) > 1 else ()
        return cls("assistant", first.text, first.stats, first.error, answers=several, chosen=chosen, trace=first.trace)

    @property
    def all_answers(self) -> tuple[Answer, ...]:
        """All answers, also where there is only one."""
        return self.answers or (Answer(self.text, self.stats or AnswerStats(), self.error, self.trace),)

    def choosing(self, index: int) -> Turn:
        """Return the turn with another of its answers chosen; an index that names none changes nothing."""
        if not 0 <= index < len(self.answers):
            return self
        other = Turn.of_answers(self.answers, index)
        return replace(other, settings=self.settings, shown_as_tokens=self.shown_as_tokens)

    def toggling_tokens(self, index: int) -> Turn:
        """Return the turn with one of its answers shown as tokens, or as text again."""
        if not 0 <= index < len(self.all_answers) or self.all_answers[index].trace is None:
            return self
        return replace(self, shown_as_tokens=self.shown_as_tokens ^ {index})

    def label(self, index: int, say: Texts = ENGLISH) -> str:
        """Return what the page calls one of several answers: `Answer 1 of 3`, or `Beam 1 · score −0.42`."""
        score = score_words(self.answers[index].stats, say)
        if score:
            return say("Beam {number} · {score}", number=index + 1, score=score)
        return say("Answer {number} of {count}", number=index + 1, count=len(self.answers))


Conversation = tuple[Turn, ...]


def score_words(stats: AnswerStats | None, say: Texts = ENGLISH) -> str:
    """Return a beam's score, `score −0.42`; empty for an answer that beam search did not find."""
    if stats is None or stats.beam_score is None:
        return ""
    return say("score {score}", score=f"{stats.beam_score:.2f}".replace("-", "\N{MINUS SIGN}"))


def chat_messages(conversation: Conversation, system_prompt: str) -> list[dict[str, str]]:
    """Return the conversation as the chat template wants it. Turns without text are left out."""
    messages = [{"role": "system", "content": system_prompt.strip()}] if system_prompt.strip() else []
    return messages + [{"role": turn.role, "content": turn.text} for turn in conversation if turn.text]


def with_chosen_answer(conversation: Conversation, index: int, answer: int) -> Conversation:
    """Return the conversation with another answer chosen; only in its last turn, since what follows built on it."""
    if not conversation or index != len(conversation) - 1:
        return conversation
    return (*conversation[:-1], conversation[-1].choosing(answer))


def with_toggled_tokens(conversation: Conversation, index: int, answer: int) -> Conversation:
    """Return the conversation with an answer of message `index` shown as tokens, or as text again."""
    if not 0 <= index < len(conversation):
        return conversation
    return (*conversation[:index], conversation[index].toggling_tokens(answer), *conversation[index + 1 :])


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


def context_full_note(service: EngineService, conversation: Conversation, say: Texts = ENGLISH) -> str:
    """Say that the conversation fills the context, and what helps; empty when it does not."""
    last = conversation[-1] if conversation else None
    if last is None or last.stats is None:
        return ""
    used = (last.stats.num_prompt_tokens or 0) + last.stats.num_output_tokens
    limit = context_limit(service)
    if last.error is not None and last.error.is_context_full:
        words = say("The context is full: it holds {limit} tokens.", limit=limit)
    elif last.stats.finish_reason is FinishReason.LENGTH and used >= limit:
        words = say("The context is full: the answer ended at {used} of {limit} tokens.", used=used, limit=limit)
    else:
        return ""
    if num_questions(conversation) > 1:
        return f"{words} {say('Drop the oldest turns to make room; the last message is then answered again.')}"
    return f"{words} {say('Shorten the message, or start a new chat.')}"


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
