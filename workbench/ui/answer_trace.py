"""What the engine did for an answer, kept with it so that it can be looked at later: its tokens and where they lay."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.engine.messages import TokenEvent


class TokenSource(enum.StrEnum):
    """Who proposed a token that the answer holds."""

    TARGET = "target"
    """Sampled from the model itself."""
    ACCEPTED = "accepted"
    """Drafted, and verified by the model."""
    RECOVERED = "recovered"
    """Sampled in the place of a drafted token that was rejected."""
    BONUS = "bonus"
    """Sampled after a draft of which all was accepted, in the same step."""


@dataclass(frozen=True)
class AnswerToken:
    """One token of an answer."""

    token_id: int
    text: str
    """Decoded by itself; bytes that are no whole character show as a replacement mark."""
    logprob: float | None = None
    """Where the request asked for it, like the rank."""
    rank: int | None = None
    """1 for the most likely token."""
    source: TokenSource = TokenSource.TARGET


@dataclass(frozen=True)
class AnswerTrace:
    """An answer as the engine knows it."""

    request_id: str
    """Name of the answer (`messages.answer_id`)."""
    last_step: int
    """Step that brought its last token."""
    tokens: tuple[AnswerToken, ...]
    first_position: int
    """Place of its first token in the context: the number of prompt tokens."""
    block_size: int
    blocks: tuple[tuple[int, ...], ...] = ()
    """Physical blocks by their place in the context, as `Placement.blocks`; empty when they are not known."""

    def blocks_of(self, index: int) -> tuple[int, ...]:
        """Return the blocks that hold the answer's token number `index`. The last token is never computed: none."""
        place = (self.first_position + index) // self.block_size
        is_last = index == len(self.tokens) - 1
        return self.blocks[place] if place < len(self.blocks) and not is_last else ()

    def slot_of(self, index: int) -> int:
        """Return the slot of token number `index` in its block."""
        return (self.first_position + index) % self.block_size


def read_tokens(event: TokenEvent, decode: Callable[[Sequence[int]], str]) -> list[AnswerToken]:
    """Return the tokens of an event, each decoded by itself."""
    sources = [source_of(event, index) for index in range(len(event.token_ids))]
    if event.logprobs is None:
        return [
            AnswerToken(token_id, decode([token_id]), source=source)
            for token_id, source in zip(event.token_ids, sources, strict=True)
        ]
    return [
        AnswerToken(told.token_id, decode([told.token_id]), told.logprob, told.rank, source)
        for told, source in zip(event.logprobs, sources, strict=True)
    ]


def source_of(event: TokenEvent, index: int) -> TokenSource:
    """Return who proposed token number `index` of an event."""
    if not event.num_draft_tokens:
        return TokenSource.TARGET
    if index < event.num_accepted_tokens:
        return TokenSource.ACCEPTED
    return TokenSource.BONUS if event.num_accepted_tokens == event.num_draft_tokens else TokenSource.RECOVERED
