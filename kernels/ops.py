"""The public tensor ops: one contract each, served by interchangeable backends.

Shape letters, used everywhere in this project:

    T tokens in the step      R requests in the step     H query heads     K key/value heads
    D head size               N physical KV blocks       B block size      M blocks in the longest table
    L layers

Caches: keys [N, K, D, B], values [N, K, B, D], float32. A block's keys lie position beside position,
which a score needs, its values dimension beside dimension, which a weighted sum needs.

A backend is an object with the methods of `Ops`. A model receives one and calls nothing else, so
two engines with different backends can live in one process.

Batch invariance: on the `cpu` backend every output element has one accumulation order that
depends on its own row only, never on how many rows the step holds, how they are chunked, or how
many threads share the work. Equal contexts therefore give bitwise equal results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.weights import LinearWeight, RowWeight


@dataclass(frozen=True)
class AttentionMetadata:
    """Where this step's tokens stand and where their context lies. Tensors only.

    Tokens of a request are consecutive rows; requests follow each other without padding.
    """

    query_start: torch.Tensor
    """int32 [R + 1]: request r owns rows query_start[r] … query_start[r + 1] - 1."""
    seq_lens: torch.Tensor
    """int32 [R]: context length of each request, this step's tokens included."""
    block_tables: torch.Tensor
    """int32 [R, M]: physical block of each logical block; entries past the context are ignored."""
    slot_mapping: torch.Tensor
    """int64 [T]: block_id * block_size + offset, where the token's key and value are written."""
    positions: torch.Tensor
    """int64 [T]: position of each token in its request."""


def kv_cache_shapes(
    num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of one layer's keys, [N, K, D, B], and values, [N, K, B, D]."""
    return (num_blocks, num_kv_heads, head_size, block_size), (num_blocks, num_kv_heads, block_size, head_size)


@dataclass(frozen=True)
class DecoderLayerWeights:
    """Weights of one Llama-family decoder layer. Projections that read the same input are fused.

    Biases may be None.
    """

    input_norm: torch.Tensor
    """[C]: applied before the layer, by whoever runs what comes before it."""
    qkv: LinearWeight
    """[(H + 2K) * D, C]: query, key, value."""
    output: LinearWeight
    """[C, H * D]"""
    post_attention_norm: torch.Tensor
    """[C]"""
    gate_up: LinearWeight
    """[2 * I, C]: gate, up."""
    down: LinearWeight
    """[C, I]"""
    qkv_bias: torch.Tensor | None = None
    output_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


@dataclass(frozen=True)
class DecoderLayerShape:
    """What a layer's weights do not tell."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    eps: float
    """Of the norms."""
    sliding_window: int | None = None
    """The `window` of `Ops.paged_attention`."""


class Ops(Protocol):
    """What a backend provides. Tensors are contiguous float32 unless stated otherwise."""

    name: str
    is_batch_invariant: bool

    def describe(self) -> str:
        """Return what runs where, for people: for example `numba, AVX-512, 2 threads`."""

    def set_num_threads(self, num_threads: int) -> None:
        """Set the threads of the calling thread's kernels (the setting is thread-local)."""

    def warm_up(self) -> None:
        """Compile whatever is compiled lazily. May take seconds the first time."""

    def prepare_weight(self, weight: RowWeight) -> LinearWeight:
        """Return a weight in the layout that this backend multiplies by.

        One of float16 takes half the memory, and is multiplied by as the float32 that it stands for. It may take
        over the memory of `weight` and reorder it, so `weight` must not be used afterwards.
        """

    def linear(self, x: torch.Tensor, weight: LinearWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return x @ weight.T (+ bias). x [T, in], weight [out, in], bias [out] → [T, out].

        Raises:
            TypeError: the weight was prepared by another backend.
        """

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root-mean-square norm over the last dimension (arXiv 1910.07467). x [T, C], weight [C] → [T, C]."""

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Add x to `residual` **in place**, then return the norm of the sum. All [T, C]."""

    def rotary_embedding(
        self, query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor
    ) -> None:
        """Rotate query [T, H, D] and key [T, K, D] **in place** (arXiv 2104.09864, halves as in Hugging Face).

        cos_sin [max_model_len, D]: cosines in the first half of a row, sines in the second;
        positions int64 [T]. Query and key may be strided views whose last dimension is contiguous.
        """

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up. gate_up [T, 2 * I], gate first → [T, I]."""

    def write_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Scatter key and value [T, K, D] into the caches [N, K, D, B] and [N, K, B, D], which are **mutated**.

        The last two dimensions of key and value are contiguous.
        """

    def copy_blocks(self, source: torch.Tensor, target: torch.Tensor, block_ids: torch.Tensor) -> None:
        """Copy whole blocks of all layers from source to target, both [L, N, ...]. Target is **mutated**.

        block_ids int64 [P, 2], each a block of the source and a block of the target, are copied in
        order: a later pair may read what an earlier one wrote. The two may differ in N only; they may
        be one and the same tensor, or lie in different memory.
        """

    def paged_attention(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        metadata: AttentionMetadata,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        """Causal attention of query [T, H, D] over paged keys and values → [T, H, D] (arXiv 2309.06180).

        Token at position p of request r attends to positions 0 … p, read in place through
        block_tables[r]: exactly ceil((p + 1) / B) blocks. Query head h reads key/value head
        h * K // H. The keys of this step must have been written before.

        With a window, at least 1, it attends to positions max(0, p - window + 1) … p only: to at most
        `window` tokens, itself included, as `sliding_window` in transformers has it (arXiv 2310.06825).
        A block wholly before the windows of all its request's tokens in this step is never read, and its
        entry in the table is ignored: it may name any block or none.
        """

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
        """Run a whole Llama-family layer (arXiv 2302.13971): the ops above, in the order of the reference.

        hidden [T, C] is the layer's normed input, or that and more beside it where the qkv weight has more
        columns; `residual` [T, C] is the stream, to which attention and MLP are added **in place**; the
        keys and values of this step are written to kv_cache. Returns the stream's norm by next_norm [C],
        the next layer's input norm or the model's final one: [T, C]. Bitwise equal to the ops one by one.
        """


def load_backend(name: str) -> Ops:
    """Return a new backend: `cpu` (compiled), `reference` (plain torch, the definition of right).

    Raises:
        ValueError: unknown name.
        ImportError, RuntimeError: the backend cannot run here; the message says why.
    """
    if name == "reference":
        from kernels.reference.backend import ReferenceOps

        return ReferenceOps()
    if name == "cpu":
        from kernels.cpu.backend import CpuOps

        return CpuOps()
    raise ValueError(f"kernel backend {name!r} is unknown: choose 'cpu' or 'reference'")
