"""The Llama-family decoder (arXiv 2302.13971) over a paged KV cache.

It calls nothing but the `Ops` it was given, so the backend decides how things are computed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from kernels.ops import AttentionMetadata, Ops
from workbench.models.config import ModelConfig
from workbench.models.rope import rotary_table


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer, float32. Projections that read the same input are fused along their rows."""

    input_norm: torch.Tensor
    """[hidden]"""
    qkv: torch.Tensor
    """[(heads + 2 * kv_heads) * head_size, hidden]: query, key, value."""
    output: torch.Tensor
    """[hidden, heads * head_size]"""
    post_attention_norm: torch.Tensor
    """[hidden]"""
    gate_up: torch.Tensor
    """[2 * intermediate, hidden]: gate, up."""
    down: torch.Tensor
    """[hidden, intermediate]"""
    qkv_bias: torch.Tensor | None = None
    """[(heads + 2 * kv_heads) * head_size]"""
    output_bias: torch.Tensor | None = None
    """[hidden]"""
    gate_up_bias: torch.Tensor | None = None
    """[2 * intermediate]"""
    down_bias: torch.Tensor | None = None
    """[hidden]"""


@dataclass(frozen=True)
class LlamaWeights:
    """All weights, float32."""

    embedding: torch.Tensor
    """[vocab, hidden]"""
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    """[hidden]"""
    head: torch.Tensor
    """[vocab, hidden]; the very tensor of `embedding` when tied."""
    rope_factors: torch.Tensor | None = None
    """[head_size // 2]: divisors of the rotary frequencies (Llama 3's long-context scaling)."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held; a tied head counts once."""
        tensors = {id(t): t for t in self._tensors()}
        return sum(t.numel() * t.element_size() for t in tensors.values())

    def _tensors(self) -> list[torch.Tensor]:
        per_layer = [getattr(layer, f.name) for layer in self.layers for f in fields(layer)]
        return [self.embedding, *(t for t in per_layer if t is not None), self.final_norm, self.head]


class LlamaForCausalLM:
    """Token ids to hidden states to logits. Holds weights and a rotary table, no state of requests."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights, ops: Ops) -> None:
        self.config = config
        self.weights = weights
        self._ops = ops
        self._cos_sin = rotary_table(
            config.head_size,
            config.rope_theta,
            config.max_position_embeddings,
            config.rope_scaling,
            weights.rope_factors,
        )

    def forward(
        self,
        token_ids: torch.Tensor,
        metadata: AttentionMetadata,
        kv_caches: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """Run all layers over this step's tokens and write their keys and values into the caches.

        token_ids: int64 [T]. kv_caches: per layer (key, value), each float32
        [num_blocks, block_size, kv_heads, head_size], **mutated** at metadata.slot_mapping.

        Returns: float32 [T, hidden], after the final norm.
        """
        ops, eps = self._ops, self.config.rms_norm_eps
        norms = [layer.input_norm for layer in self.weights.layers] + [self.weights.final_norm]
        residual = self.weights.embedding[token_ids]
        hidden = ops.rms_norm(residual, norms[0], eps)
        for layer, next_norm, kv_cache in zip(self.weights.layers, norms[1:], kv_caches, strict=True):
            hidden = self._attention(layer, hidden, metadata, kv_cache)
            hidden = ops.add_rms_norm(hidden, residual, layer.post_attention_norm, eps)
            hidden = ops.silu_and_mul(ops.linear(hidden, layer.gate_up, layer.gate_up_bias))
            hidden = ops.linear(hidden, layer.down, layer.down_bias)
            hidden = ops.add_rms_norm(hidden, residual, next_norm, eps)
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits float32 [S, vocab] of hidden states float32 [S, hidden]."""
        return self._ops.linear(hidden, self.weights.head)

    def _attention(
        self,
        layer: LayerWeights,
        hidden: torch.Tensor,
        metadata: AttentionMetadata,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        config, ops = self.config, self._ops
        num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
        # One [T, heads, head_size] tensor; query, key and value are views of it, nothing is copied.
        qkv = ops.linear(hidden, layer.qkv, layer.qkv_bias).view(-1, num_heads + 2 * num_kv_heads, config.head_size)
        query, key, value = torch.split(qkv, [num_heads, num_kv_heads, num_kv_heads], dim=1)
        ops.rotary_embedding(query, key, self._cos_sin, metadata.positions)
        ops.write_kv(key, value, *kv_cache, metadata.slot_mapping)
        context = ops.paged_attention(query, *kv_cache, metadata, config.head_size**-0.5)
        return ops.linear(context.view(context.shape[0], -1), layer.output, layer.output_bias)
