"""A Llama-family decoder layer (arXiv 2302.13971), written as the sequence of ops that it is."""

from __future__ import annotations

import torch

from kernels.ops import AttentionMetadata, DecoderLayerShape, DecoderLayerWeights, Ops


def decoder_layer(
    ops: Ops,
    hidden: torch.Tensor,
    residual: torch.Tensor,
    weights: DecoderLayerWeights,
    next_norm: torch.Tensor,
    shape: DecoderLayerShape,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    cos_sin: torch.Tensor,
    metadata: AttentionMetadata,
) -> torch.Tensor:
    """See `kernels.ops.Ops.decoder_layer`; runs on any backend's single ops."""
    heads, kv_heads, head_size = shape.num_heads, shape.num_kv_heads, shape.head_size
    # One [T, heads, head_size] tensor; query, key and value are views of it, nothing is copied.
    qkv = ops.linear(hidden, weights.qkv, weights.qkv_bias).view(-1, heads + 2 * kv_heads, head_size)
    query, key, value = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
    ops.rotary_embedding(query, key, cos_sin, metadata.positions)
    ops.write_kv(key, value, *kv_cache, metadata.slot_mapping)
    context = ops.paged_attention(query, *kv_cache, metadata, head_size**-0.5, shape.sliding_window)
    branch = ops.linear(context.view(context.shape[0], -1), weights.output, weights.output_bias)
    normed = ops.add_rms_norm(branch, residual, weights.post_attention_norm, shape.eps)
    activated = ops.silu_and_mul(ops.linear(normed, weights.gate_up, weights.gate_up_bias))
    branch = ops.linear(activated, weights.down, weights.down_bias)
    return ops.add_rms_norm(branch, residual, next_norm, shape.eps)
