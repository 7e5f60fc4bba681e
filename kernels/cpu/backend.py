"""The compiled CPU backend: numba kernels that read torch's memory in place."""

from __future__ import annotations

import math
from typing import Any, Final

from kernels.cpu import numba_setup  # first: numba's OpenMP runtime before torch's

# isort: split
import numba
import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu import elementwise
from kernels.cpu.copy_blocks import copy_blocks
from kernels.cpu.decoder_layer import decoder_layer
from kernels.cpu.linear import linear
from kernels.cpu.paged_attention import NO_WINDOW, paged_attention
from kernels.cpu.panels import PanelWeight, pack
from kernels.cpu.vector_code import HAS_AVX2, HAS_AVX512
from kernels.ops import AttentionMetadata, DecoderLayerShape, DecoderLayerWeights
from kernels.weights import LinearWeight, RowWeight


class CpuOps:
    """`kernels.ops.Ops` in numba. Every element has one order of accumulation: bitwise batch-invariant."""

    name = "cpu"
    is_batch_invariant = True

    def __init__(self) -> None:
        """Raise RuntimeError where the kernels cannot run."""
        numba_setup.load_threading_layer()

    def describe(self) -> str:
        """Return what runs where, for people: for example `numba omp, AVX-512, 2 threads`."""
        vectors = "AVX-512" if HAS_AVX512 else "AVX2" if HAS_AVX2 else "no AVX2"
        return f"numba {numba.threading_layer()}, {vectors}, {numba.get_num_threads()} threads"

    def set_num_threads(self, num_threads: int) -> None:
        """Set the threads of the calling thread's kernels, numba's and torch's alike."""
        numba.set_num_threads(num_threads)
        torch.set_num_threads(num_threads)

    def warm_up(self) -> None:
        """Compile every kernel, or load it from numba's cache; what multiplies by weights, for float32 and float16."""
        x = torch.zeros(1, 16)
        keys, values = torch.zeros(1, 1, 16, 8), torch.zeros(1, 1, 8, 16)
        qkv = torch.zeros(1, 3, 16)
        query, key, value = qkv.split((1, 1, 1), dim=1)
        zero = torch.zeros(1, dtype=torch.int64)
        one_token = AttentionMetadata(
            query_start=torch.tensor([0, 1], dtype=torch.int32),
            seq_lens=torch.ones(1, dtype=torch.int32),
            block_tables=torch.zeros(1, 1, dtype=torch.int32),
            slot_mapping=zero,
            positions=zero,
        )
        self.rms_norm(x, torch.ones(16), 1e-5)
        self.add_rms_norm(x, torch.zeros(1, 16), torch.ones(16), 1e-5)
        self.silu_and_mul(torch.zeros(1, 32))
        self.rotary_embedding(query, key, torch.zeros(1, 16), zero)
        self.write_kv(key, value, keys, values, zero)
        self.copy_blocks(keys, keys, torch.zeros(1, 2, dtype=torch.int64))
        self.paged_attention(query, keys, values, one_token, 1.0)
        shape = DecoderLayerShape(num_heads=1, num_kv_heads=1, head_size=16, eps=1e-5)
        for dtype in (torch.float32, torch.float16):
            square, gate_up, fused = (
                self.prepare_weight(RowWeight(torch.zeros(size, 16, dtype=dtype))) for size in (16, 32, 48)
            )
            self.linear(square.rows(zero), square)
            layer = DecoderLayerWeights(torch.ones(16), fused, square, torch.ones(16), gate_up, square)
            self.decoder_layer(
                x, x.clone(), layer, torch.ones(16), shape, (keys, values), torch.zeros(1, 16), one_token
            )

    def prepare_weight(self, weight: RowWeight) -> LinearWeight:
        """See `kernels.ops.Ops.prepare_weight`."""
        return pack(weight)

    def linear(self, x: torch.Tensor, weight: LinearWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
        """See `kernels.ops.Ops.linear`."""
        panels = _panels(weight)
        out = np.empty((x.shape[0], panels.shape[0]), np.float32)
        linear(x.contiguous().numpy(), panels, out, numba.get_num_threads())
        result = torch.from_numpy(out)
        return result if bias is None else result.add_(bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `kernels.ops.Ops.rms_norm`."""
        out = torch.empty_like(x)
        elementwise.rms_norm(x.numpy(), weight.numpy(), eps, out.numpy())
        return out

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `kernels.ops.Ops.add_rms_norm`."""
        out = torch.empty_like(x)
        elementwise.add_rms_norm(x.numpy(), residual.numpy(), weight.numpy(), eps, out.numpy())
        return out

    def rotary_embedding(
        self, query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor
    ) -> None:
        """See `kernels.ops.Ops.rotary_embedding`."""
        elementwise.rotary_embedding(query.numpy(), key.numpy(), cos_sin.numpy(), positions.numpy())

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `kernels.ops.Ops.silu_and_mul`."""
        out = torch.empty((gate_up.shape[0], gate_up.shape[1] // 2), dtype=torch.float32)
        elementwise.silu_and_mul(gate_up.numpy(), out.numpy())
        return out

    def write_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """See `kernels.ops.Ops.write_kv`."""
        elementwise.write_kv(key.numpy(), value.numpy(), key_cache.numpy(), value_cache.numpy(), slot_mapping.numpy())

    def copy_blocks(self, source: torch.Tensor, target: torch.Tensor, block_ids: torch.Tensor) -> None:
        """See `kernels.ops.Ops.copy_blocks`."""
        copy_blocks(_blocks(source), _blocks(target), block_ids.numpy())

    def paged_attention(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        metadata: AttentionMetadata,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        """See `kernels.ops.Ops.paged_attention`. The query may be a strided view."""
        out = torch.empty(query.shape, dtype=torch.float32)
        if query.shape[0] == 0:
            return out
        paged_attention(
            (_elements(query), query.stride(0), query.stride(1)),
            key_cache.numpy(),
            value_cache.numpy(),
            metadata.query_start.numpy(),
            metadata.block_tables.numpy(),
            metadata.positions.numpy(),
            np.float32(scale),
            _window(window),
            out.numpy(),
            numba.get_num_threads(),
        )
        return out

    def decoder_layer(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        weights: DecoderLayerWeights,
        next_norm: torch.Tensor,
        shape: DecoderLayerShape,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        cos_sin: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """See `kernels.ops.Ops.decoder_layer`."""
        normed = decoder_layer(
            hidden.numpy(),
            residual.numpy(),
            (
                _panels(weights.qkv),
                _bias(weights.qkv_bias),
                _panels(weights.output),
                _bias(weights.output_bias),
                weights.post_attention_norm.numpy(),
                _panels(weights.gate_up),
                _bias(weights.gate_up_bias),
                _panels(weights.down),
                _bias(weights.down_bias),
                next_norm.numpy(),
            ),
            (kv_cache[0].numpy(), kv_cache[1].numpy()),
            (
                cos_sin.numpy(),
                metadata.positions.numpy(),
                metadata.slot_mapping.numpy(),
                metadata.query_start.numpy(),
                metadata.block_tables.numpy(),
            ),
            (shape.num_heads, shape.num_kv_heads, shape.head_size, _window(shape.sliding_window)),
            shape.eps,
            np.float32(shape.head_size**-0.5),
            numba.get_num_threads(),
        )
        return torch.from_numpy(normed)


_NO_BIAS: Final = np.zeros(0, np.float32)


def _elements(strided: torch.Tensor) -> npt.NDArray[np.float32]:
    """Return the memory from a tensor's first element to its last."""
    last = sum((size - 1) * stride for size, stride in zip(strided.shape, strided.stride(), strict=True))
    return strided.as_strided((last + 1,), (1,)).numpy()


def _blocks(cache: torch.Tensor) -> npt.NDArray[np.float32]:
    """Return contiguous [L, N, ...] as [L, N, elements of a block], the same memory."""
    return cache.view(*cache.shape[:2], math.prod(cache.shape[2:])).numpy()


def _panels(weight: LinearWeight) -> npt.NDArray[Any]:
    if not isinstance(weight, PanelWeight):
        raise TypeError(f"the cpu backend multiplies by weights that it prepared, not by a {type(weight).__name__}")
    return weight.panels


def _window(window: int | None) -> int:
    return NO_WINDOW if window is None else window


def _bias(bias: torch.Tensor | None) -> npt.NDArray[np.float32]:
    return _NO_BIAS if bias is None else bias.numpy()
