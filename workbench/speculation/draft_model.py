"""A smaller model with the same tokenizer drafts (arXiv 2211.17192)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from kernels.ops import AttentionMetadata
from workbench.speculation.paged_store import PagedStore
from workbench.speculation.proposer import DraftContext


class CausalLM(Protocol):
    """The part of a model that drafting needs; as in the engine's runner."""

    def forward(
        self,
        token_ids: torch.Tensor,
        metadata: Sequence[AttentionMetadata],
        kv_caches: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """Token ids int64 [T] → hidden states [T, hidden]; writes the caches."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [S, hidden] → logits float32 [S, vocab]."""


class DraftModel:
    """A whole model as a `DraftingModel`: position p takes token p. The store holds its keys and values."""

    offsets = (0,)
    vocabulary: torch.Tensor | None = None

    def __init__(self, model: CausalLM) -> None:
        """`model` attends to everything: one group of layers, no window."""
        self._model = model

    def note(self, step: DraftContext, store: PagedStore) -> None:
        """Nothing: it reads tokens only."""

    def forward(
        self, token_ids: torch.Tensor, features: torch.Tensor | None, metadata: AttentionMetadata, store: PagedStore
    ) -> torch.Tensor:
        """Token ids int64 [T, 1] → hidden states float32 [T, C]."""
        keys, values = store.tensors
        return self._model.forward(token_ids[:, 0], [metadata], list(zip(keys, values, strict=True)))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states float32 [S, C] → logits float32 [S, vocab]."""
        return self._model.compute_logits(hidden)
