"""Reads the tensors of a Llama-family decoder, whatever kind of file holds them and however it names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.ops import DecoderLayerWeights
from kernels.weights import RowWeight
from workbench.errors import ModelLoadError
from workbench.models.config import ModelConfig
from workbench.models.llama import LlamaWeights
from workbench.models.loaded import LoadProgress
from workbench.models.weight_memory import WeightMemory


class TensorSource(Protocol):
    """One file, or several that belong together, with named tensors."""

    @property
    def tensor_names(self) -> frozenset[str]:
        """Names of all tensors."""

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors as stored."""

    def error(self, problem: str, remedy: str) -> ModelLoadError:
        """Return an error that names the source, what is wrong and the remedy."""

    def read_into(self, name: str, target: torch.Tensor, on_bytes: Callable[[int], None]) -> None:
        """Fill target (contiguous float32) with a tensor of exactly its shape, finite values only.

        on_bytes: called with the number of stored bytes that were just consumed.
        """


@dataclass(frozen=True)
class TensorNames:
    """What a kind of file calls its tensors. All names are without `.weight` and `.bias`."""

    embedding: str
    final_norm: str
    head: str
    layer: str
    """Prefix of a layer's tensors, with `{}` for its number."""
    input_norm: str
    query: str
    key: str
    value: str
    output: str
    post_attention_norm: str
    gate: str
    up: str
    down: str


class WeightReader:
    """Reads tensor by tensor straight into the fused weights: no second copy of the model."""

    def __init__(
        self, source: TensorSource, names: TensorNames, config: ModelConfig, progress: Callable[[LoadProgress], None]
    ) -> None:
        self._source, self._names, self._config, self._progress = source, names, config, progress
        self._done_bytes, self._total_bytes = 0, source.tensor_bytes
        self._seen: set[str] = set()
        self._memory = WeightMemory()

    def read(self, expects_more: Callable[[str], bool] = lambda _: False) -> LlamaWeights:
        """Return all weights.

        expects_more: says of a tensor that no Llama decoder has whether it may be there nevertheless.

        Raises:
            ModelLoadError: tensors are missing, misshapen, not finite or left over.
        """
        config, names = self._config, self._names
        embedding = self._matrix(config.hidden_size, (names.embedding, config.vocab_size))
        layers = tuple(self._layer(i) for i in range(config.num_layers))
        final_norm = self._vector((f"{names.final_norm}.weight", config.hidden_size))
        head = self._head(embedding)
        left_over = sorted(name for name in self._source.tensor_names - self._seen if not expects_more(name))
        if left_over:
            raise self._source.error(
                f"it holds {len(left_over)} tensors that a Llama decoder does not have, first {left_over[0]!r}",
                "give a plain Llama model (without experts, or biases that its configuration does not name)",
            )
        return LlamaWeights(embedding, layers, final_norm, head)

    def _head(self, embedding: RowWeight) -> RowWeight:
        """Return the head; the embedding itself where both are one, even if the file holds it twice."""
        config, name = self._config, self._names.head
        if config.tie_word_embeddings and f"{name}.weight" not in self._source.tensor_names:
            return embedding
        head = self._matrix(config.hidden_size, (name, config.vocab_size))
        return embedding if config.tie_word_embeddings and torch.equal(head.matrix, embedding.matrix) else head

    def _layer(self, index: int) -> DecoderLayerWeights:
        config, names, prefix = self._config, self._names, self._names.layer.format(index)
        hidden, inner = config.hidden_size, config.intermediate_size
        q_rows, kv_rows = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
        qkv = ((prefix + names.query, q_rows), (prefix + names.key, kv_rows), (prefix + names.value, kv_rows))
        gate_up = ((prefix + names.gate, inner), (prefix + names.up, inner))
        output, down = (prefix + names.output, hidden), (prefix + names.down, hidden)
        return DecoderLayerWeights(
            input_norm=self._vector((f"{prefix}{names.input_norm}.weight", hidden)),
            qkv=self._matrix(hidden, *qkv),
            qkv_bias=self._bias(*qkv) if config.qkv_bias else None,
            output=self._matrix(q_rows, output),
            output_bias=self._bias(output) if config.output_bias else None,
            post_attention_norm=self._vector((f"{prefix}{names.post_attention_norm}.weight", hidden)),
            gate_up=self._matrix(hidden, *gate_up),
            gate_up_bias=self._bias(*gate_up) if config.mlp_bias else None,
            down=self._matrix(inner, down),
            down_bias=self._bias(down) if config.mlp_bias else None,
        )

    def _matrix(self, columns: int, *parts: tuple[str, int]) -> RowWeight:
        """Return the named weights (name, rows), one below the other: float32 [sum of rows, columns]."""
        target = self._memory.empty(sum(rows for _, rows in parts), columns)
        return RowWeight(self._fill(target, [(f"{name}.weight", rows) for name, rows in parts]))

    def _bias(self, *parts: tuple[str, int]) -> torch.Tensor:
        return self._vector(*((f"{name}.bias", rows) for name, rows in parts))

    def _vector(self, *parts: tuple[str, int]) -> torch.Tensor:
        return self._fill(torch.empty(sum(size for _, size in parts), dtype=torch.float32), parts)

    def _fill(self, target: torch.Tensor, parts: list[tuple[str, int]] | tuple[tuple[str, int], ...]) -> torch.Tensor:
        start = 0
        for name, rows in parts:
            self._seen.add(name)
            self._source.read_into(name, target[start : start + rows], self._count)
            start += rows
        return target

    def _count(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        self._progress(LoadProgress("loading weights", self._done_bytes, self._total_bytes))
