"""A small head on the target's own hidden states drafts (EAGLE, arXiv 2401.15077).

Position p takes the embeddings of tokens p and p + 1 and the target's hidden state of p, and predicts token p + 2:
one projection over the three, one Llama layer, and the target's own embedding, restricted to its most frequent
tokens, as the head. Where it goes on from its own drafts, its own hidden state stands for the target's.

EAGLE takes the embedding of token p + 1 only. With that of p beside it, the one layer can copy: position q then knows
two tokens that follow each other, so that at p attention can look for the q with token q = token p + 1, and read what
stood behind it. Without, that takes two layers (induction heads, arXiv 2209.11895). Attention sees both embeddings
beside the stream (as in EAGLE-3, arXiv 2503.01840), where they are not mixed with anything. Keys see token p - 1, too:
of the places where a token stood, attention can prefer those with the same token before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.ops import AttentionMetadata, DecoderLayerShape, DecoderLayerWeights, Ops
from kernels.weights import LinearWeight
from workbench.speculation.paged_store import PagedStore
from workbench.speculation.proposer import DraftContext


@dataclass(frozen=True)
class EagleWeights:
    """All weights of a head in the layout of its ops: matrices float16, vectors float32."""

    token_norm: torch.Tensor
    """[C]: for embeddings, which are much smaller than hidden states."""
    fuse: LinearWeight
    """[C, 3 * C]: embedding of the position's token, of the one behind it, then hidden state."""
    layer: DecoderLayerWeights
    """Its qkv takes the normed stream and three embeddings: `wide_qkv`."""
    final_norm: torch.Tensor
    """[C]"""
    embedding: LinearWeight
    """[vocab, C]: the target's."""
    head: LinearWeight
    """[V, C]: rows of the embedding, or of the target's head."""
    vocabulary: torch.Tensor
    """int64 [V]: token ids of these rows."""


class EagleHead:
    """The head as a `DraftingModel`. The store holds keys, values, and the target's hidden states."""

    offsets = (-1, 0, 1)

    def __init__(self, weights: EagleWeights, shape: DecoderLayerShape, cos_sin: torch.Tensor, ops: Ops) -> None:
        """`cos_sin` is the target's rotary table: [max_model_len, D]."""
        self._weights = weights
        self._shape = shape
        self._cos_sin = cos_sin
        self._ops = ops

    @property
    def vocabulary(self) -> torch.Tensor:
        """Token ids that it can draft, int64 [V]."""
        return self._weights.vocabulary

    @staticmethod
    def store_shapes(
        hidden_size: int, kv_shapes: tuple[tuple[int, ...], ...], block_size: int
    ) -> list[tuple[int, ...]]:
        """Return the shapes of a `PagedStore`: keys, values, hidden states. kv_shapes: of one block."""
        return [*((1, *shape) for shape in kv_shapes), (1, block_size, hidden_size)]

    def note(self, step: DraftContext, store: PagedStore) -> None:
        """Keep the target's hidden states at the slots of their tokens."""
        features = store.tensors[2]
        features.view(-1, features.shape[-1])[step.metadata[0].slot_mapping] = step.hidden

    def forward(
        self, token_ids: torch.Tensor, features: torch.Tensor | None, metadata: AttentionMetadata, store: PagedStore
    ) -> torch.Tensor:
        """Token ids int64 [T, 3], those before, at and behind each position → hidden states float32 [T, C]."""
        keys, values, kept = store.tensors
        if features is None:
            features = kept.view(-1, kept.shape[-1])[metadata.slot_mapping]
        weights, ops, eps = self._weights, self._ops, self._shape.eps
        rows = ops.rms_norm(weights.embedding.rows(token_ids.flatten()), weights.token_norm, eps)
        embedded = rows.view(len(token_ids), -1)
        at_and_behind = embedded[:, features.shape[1] :]
        residual = ops.linear(torch.cat([at_and_behind, features], dim=-1), weights.fuse)
        normed = ops.rms_norm(residual, weights.layer.input_norm, eps)
        return ops.decoder_layer(
            torch.cat([normed, embedded], dim=-1),
            residual,
            weights.layer,
            weights.final_norm,
            self._shape,
            (keys[0], values[0]),
            self._cos_sin,
            metadata,
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states float32 [S, C] → logits float32 [S, V]."""
        return self._ops.linear(hidden, self._weights.head)


def wide_qkv(qkv: torch.Tensor, key_before: torch.Tensor) -> torch.Tensor:
    """Put the weight that only keys have for the token before into that of queries, keys and values.

    Args:
        qkv: [(H + 2K) * D, 3 * C], over the normed stream and the tokens at and behind the position.
        key_before: [K * D, C], over the token before.

    Returns:
        [(H + 2K) * D, 4 * C], over stream, token before, at and behind.
    """
    num_keys, hidden = key_before.shape
    before = qkv.new_zeros((len(qkv), hidden))
    before[-2 * num_keys : -num_keys] = key_before
    return torch.cat([qkv[:, :hidden], before, qkv[:, hidden:]], dim=1)
