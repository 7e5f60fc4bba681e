"""What drafts tokens ahead of the model, and what it sees of the engine.

A proposer suggests; it never commits. Whatever it suggests, verification keeps the model's own
distribution (`rejection_sampler`), so a wrong draft costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.ops import AttentionMetadata


@dataclass(frozen=True)
class DraftRequest:
    """A request that wants tokens drafted: its context is computed but for the last token."""

    request_id: str
    token_ids: Sequence[int]
    """Prompt and output so far. The engine's own list: to be read now, not kept or changed."""
    num_tokens: int
    """Most tokens to draft, at least 1."""
    prompt_lookup: tuple[int, int]
    """Fewest and most last tokens that a look-up takes."""
    block_tables: tuple[tuple[int, ...], ...]
    """Of each group of layers: physical blocks of the computed context, -1 where they are behind the window."""
    temperature: float = 0.0
    uniforms: Sequence[float] = ()
    """Random numbers in [0, 1), one for each token to draft, in case it is drawn."""
    least_confidence: float = 0.0
    """A draft ends before a token that is less likely than this to be reached and to stand."""


@dataclass(frozen=True)
class Draft:
    """Tokens suggested for one request, at most as many as it wanted, possibly none."""

    token_ids: tuple[int, ...] = ()
    probabilities: torch.Tensor | None = None
    """float32 [k, vocab]: what each was drawn from. None when they were not drawn: each is the one that was sure."""


class DraftContext(Protocol):
    """What one step computed, for proposers that keep tensors beside the engine's: same blocks, same slots."""

    @property
    def metadata(self) -> Sequence[AttentionMetadata]:
        """Of the step's rows, for each group of layers; none where nothing was computed."""

    @property
    def token_ids(self) -> torch.Tensor:
        """Tokens of the step's rows, int64 [T]."""

    @property
    def hidden(self) -> torch.Tensor:
        """The model's hidden states after the final norm, float32 [T, hidden]."""

    @property
    def transfers(self) -> Sequence[tuple[str, torch.Tensor]]:
        """What was copied before the step's tokens were computed, in order.

        Each is `copy`, `swap_out` or `swap_in`, with pairs of source and target blocks, int64 [P, 2]; where blocks
        are swapped, one of the two counts those of the swap space.
        """


class Proposer(Protocol):
    """One way to draft. To add one: a file here and a line where the engine makes them."""

    def follow(self, step: DraftContext) -> None:
        """Look at what a step computed, before anything is drafted from it."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return a draft for each request, in their order."""

    def forget(self, request_id: str) -> None:
        """Drop what is kept of a request that has ended; an unknown one is fine."""
