"""The Llama-family decoder (arXiv 2302.13971) over a paged KV cache.

It calls nothing but the `Ops` it was given, so the backend decides how things are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from kernels.ops import AttentionMetadata, DecoderLayerShape, DecoderLayerWeights, Ops
from kernels.weights import LinearWeight, RowWeight
from workbench.models.config import ModelConfig
from workbench.models.rope import rotary_table


@dataclass(frozen=True)
class LlamaWeights:
    """All weights, float32."""

    embedding: LinearWeight
    """[vocab, hidden]"""
    layers: tuple[DecoderLayerWeights, ...]
    final_norm: torch.Tensor
    """[hidden]"""
    head: LinearWeight
    """[vocab, hidden]; the very object of `embedding` when tied."""
    rope_factors: torch.Tensor | None = None
    """[head_size // 2]: divisors of the rotary frequencies (Llama 3's long-context scaling)."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held; a tied head counts once."""
        per_layer = [getattr(layer, f.name) for layer in self.layers for f in fields(layer)]
        held = {id(each): each for each in (self.embedding, *per_layer, self.final_norm, self.head)}
        return sum(_num_bytes(each) for each in held.values() if each is not None)

    def prepared_for(self, ops: Ops) -> LlamaWeights:
        """Return the weights in the layout of `ops`, which takes over their memory: do not use these here again."""
        ready: dict[int, LinearWeight] = {}

        def prepare(value: Any) -> Any:
            if not isinstance(value, RowWeight):
                return value
            if id(value) not in ready:
                ready[id(value)] = ops.prepare_weight(value)
            return ready[id(value)]

        layers = (
            replace(each, **{f.name: prepare(getattr(each, f.name)) for f in fields(each)}) for each in self.layers
        )
        return replace(self, embedding=prepare(self.embedding), layers=tuple(layers), head=prepare(self.head))


def _num_bytes(value: LinearWeight | torch.Tensor) -> int:
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else value.num_bytes


class LlamaForCausalLM:
    """Token ids to hidden states to logits. Holds weights and a rotary table, no state of requests."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights, ops: Ops) -> None:
        """Take over the weights, which are brought into the layout of `ops`."""
        self.config = config
        self.weights = weights.prepared_for(ops)
        self._ops = ops
        shape = DecoderLayerShape(config.num_heads, config.num_kv_heads, config.head_size, config.rms_norm_eps)
        layers = {
            layer: (number, replace(shape, sliding_window=group.window))
            for number, group in enumerate(config.layer_groups)
            for layer in group.layers
        }
        self._layers = [layers[layer] for layer in range(config.num_layers)]
        self._cos_sin = rotary_table(
            config.head_size,
            config.rope_theta,
            config.max_position_embeddings,
            config.rope_scaling,
            weights.rope_factors,
        )

    @property
    def ops(self) -> Ops:
        """What it computes with."""
        return self._ops

    @property
    def cos_sin(self) -> torch.Tensor:
        """Its rotary table, float32 [max_position_embeddings, head_size]: cosines, then sines."""
        return self._cos_sin

    def forward(
        self,
        token_ids: torch.Tensor,
        metadata: Sequence[AttentionMetadata],
        kv_caches: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """Run all layers over this step's tokens and write their keys and values into the caches.

        token_ids: int64 [T]. metadata: one for each of `ModelConfig.layer_groups`. kv_caches: per layer
        keys and values, float32, in the shapes of `kernels.ops.kv_cache_shapes`, **mutated** at the
        slot_mapping of the layer's group.

        Returns: float32 [T, hidden], after the final norm.
        """
        ops, layers = self._ops, self.weights.layers
        next_norms = [*(layer.input_norm for layer in layers[1:]), self.weights.final_norm]
        residual = self.weights.embedding.rows(token_ids)
        hidden = ops.rms_norm(residual, layers[0].input_norm, self.config.rms_norm_eps)
        parts = zip(layers, next_norms, kv_caches, self._layers, strict=True)
        for layer, next_norm, kv_cache, (group, shape) in parts:
            hidden = ops.decoder_layer(
                hidden, residual, layer, next_norm, shape, kv_cache, self._cos_sin, metadata[group]
            )
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits float32 [S, vocab] of hidden states float32 [S, hidden]."""
        return self._ops.linear(hidden, self.weights.head)
