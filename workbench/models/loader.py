"""From a model file to a model that can run: weights, configuration, tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from kernels.ops import Ops
from workbench.config import DEFAULT_MODEL
from workbench.errors import ModelLoadError
from workbench.models.config import ModelConfig
from workbench.models.default_model import resolve_model_path
from workbench.models.gguf_file import GGUFFile
from workbench.models.llama import LayerWeights, LlamaForCausalLM, LlamaWeights
from workbench.models.tokenizer import Tokenizer

ARCHITECTURES: Final = ("llama",)


@dataclass(frozen=True)
class LoadProgress:
    """How far loading is. Bytes count the file's tensors as stored; 0 of 0 while the phase has no measure."""

    phase: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class LoadedModel:
    """Everything the engine needs of a model."""

    config: ModelConfig
    model: LlamaForCausalLM
    tokenizer: Tokenizer
    path: Path
    weight_bytes: int
    """Bytes of the weights in memory."""
    file_bytes: int
    source_format: str
    """Storage type of the file, for example `GGUF Q4_1`. Weights are dequantized to float32 on load."""


def load_model(name_or_path: str, ops: Ops, progress: Callable[[LoadProgress], None]) -> LoadedModel:
    """Load a GGUF file by the packaged model's name or by path.

    progress: called in this thread, a few hundred times.

    Raises:
        ModelLoadError: missing, truncated, corrupt or of an unknown kind; names the file and the remedy.
    """
    path = resolve_model_path(name_or_path)
    progress(LoadProgress("reading metadata", 0, 0))
    file = GGUFFile(path)
    architecture = file.field("general.architecture")
    if architecture not in ARCHITECTURES:
        raise file.error(f"architecture {architecture!r} is not supported", f"supported: {', '.join(ARCHITECTURES)}")
    try:
        tokenizer = Tokenizer(file.metadata)
    except ModelLoadError as error:
        raise ModelLoadError(f"cannot load {path.name}: {error}") from error
    name = DEFAULT_MODEL if name_or_path == DEFAULT_MODEL else _model_name(path)
    config = _read_config(file, name, tokenizer)
    weights = _WeightReader(file, config, progress).read()
    return LoadedModel(
        config=config,
        model=LlamaForCausalLM(config, weights, ops),
        tokenizer=tokenizer,
        path=path,
        weight_bytes=weights.num_bytes,
        file_bytes=file.file_bytes,
        source_format=file.source_format,
    )


def _model_name(path: Path) -> str:
    """Return the file's name without its ending and quantization: `tiny.Q4_K_M.gguf` is `tiny`."""
    return re.sub(r"[.-](I?Q\d\w*|B?F\d+)$", "", path.stem, flags=re.IGNORECASE)


def _read_config(file: GGUFFile, name: str, tokenizer: Tokenizer) -> ModelConfig:
    def number(key: str) -> Any:
        value = file.field(f"llama.{key}")
        if not isinstance(value, int | float) or value <= 0:
            raise file.error(f"llama.{key} = {value!r} is not a positive number", "convert the model again")
        return value

    _refuse_variants(file)
    hidden_size, num_heads = number("embedding_length"), number("attention.head_count")
    head_size = file.metadata.get("llama.attention.key_length") or hidden_size // num_heads
    config = ModelConfig(
        name=name,
        architecture="llama",
        vocab_size=tokenizer.vocab_size,
        hidden_size=hidden_size,
        intermediate_size=number("feed_forward_length"),
        num_layers=number("block_count"),
        num_heads=num_heads,
        num_kv_heads=file.metadata.get("llama.attention.head_count_kv") or num_heads,
        head_size=head_size,
        max_position_embeddings=number("context_length"),
        rms_norm_eps=float(number("attention.layer_norm_rms_epsilon")),
        rope_theta=float(file.metadata.get("llama.rope.freq_base", 10000.0)),
        tie_word_embeddings="output.weight" not in file.tensor_names,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_ids=tokenizer.eos_token_ids,
    )
    if config.num_heads % config.num_kv_heads or config.head_size % 2:
        raise file.error(
            f"{config.num_heads} heads, {config.num_kv_heads} key/value heads of {config.head_size} do not fit",
            "convert the model again",
        )
    return config


def _refuse_variants(file: GGUFFile) -> None:
    """Refuse what would compute something else than the file means."""
    if file.metadata.get("llama.expert_count", 0):
        raise file.error("it is a mixture of experts", "give a dense model")
    scaling = file.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise file.error(f"rotary scaling {scaling!r} is not supported", "give a model without it")
    rotated, head_size = (
        file.metadata.get("llama.rope.dimension_count"),
        file.metadata.get("llama.attention.key_length"),
    )
    head_size = head_size or file.field("llama.embedding_length") // max(file.field("llama.attention.head_count"), 1)
    if rotated not in (None, head_size):
        raise file.error(f"only {rotated} of {head_size} dimensions are rotated", "give a model that rotates all")


class _WeightReader:
    """Dequantizes tensor by tensor straight into the fused weights: no second copy of the model."""

    def __init__(self, file: GGUFFile, config: ModelConfig, progress: Callable[[LoadProgress], None]) -> None:
        self._file, self._config, self._progress = file, config, progress
        self._done_bytes, self._total_bytes = 0, file.tensor_bytes
        self._seen: set[str] = set()

    def read(self) -> LlamaWeights:
        """Return all weights; ModelLoadError when tensors are missing, misshapen or left over."""
        config = self._config
        embedding = self._matrix(config.hidden_size, ("token_embd.weight", config.vocab_size))
        layers = tuple(self._layer(i) for i in range(config.num_layers))
        final_norm = self._vector("output_norm.weight", config.hidden_size)
        head = embedding
        if not config.tie_word_embeddings:
            head = self._matrix(config.hidden_size, ("output.weight", config.vocab_size))
        factors = None
        if "rope_freqs.weight" in self._file.tensor_names:
            factors = self._vector("rope_freqs.weight", config.head_size // 2)
        left_over = sorted(self._file.tensor_names - self._seen)
        if left_over:
            raise self._file.error(
                f"it holds {len(left_over)} tensors that a Llama decoder does not have, first {left_over[0]!r}",
                "give a plain Llama model (without biases or experts)",
            )
        return LlamaWeights(embedding, layers, final_norm, head, factors)

    def _layer(self, index: int) -> LayerWeights:
        config, prefix = self._config, f"blk.{index}"
        hidden, inner = config.hidden_size, config.intermediate_size
        q_rows, kv_rows = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
        qkv = self._matrix(
            hidden,
            (f"{prefix}.attn_q.weight", q_rows),
            (f"{prefix}.attn_k.weight", kv_rows),
            (f"{prefix}.attn_v.weight", kv_rows),
        )
        _unpermute_rows(qkv[:q_rows], config.num_heads)
        _unpermute_rows(qkv[q_rows : q_rows + kv_rows], config.num_kv_heads)
        return LayerWeights(
            input_norm=self._vector(f"{prefix}.attn_norm.weight", hidden),
            qkv=qkv,
            output=self._matrix(q_rows, (f"{prefix}.attn_output.weight", hidden)),
            post_attention_norm=self._vector(f"{prefix}.ffn_norm.weight", hidden),
            gate_up=self._matrix(hidden, (f"{prefix}.ffn_gate.weight", inner), (f"{prefix}.ffn_up.weight", inner)),
            down=self._matrix(inner, (f"{prefix}.ffn_down.weight", hidden)),
        )

    def _matrix(self, columns: int, *parts: tuple[str, int]) -> torch.Tensor:
        """Return the named tensors (name, rows), one below the other: float32 [sum of rows, columns]."""
        target = torch.empty((sum(rows for _, rows in parts), columns), dtype=torch.float32)
        start = 0
        for name, rows in parts:
            self._read(name, target[start : start + rows])
            start += rows
        return target

    def _vector(self, name: str, size: int) -> torch.Tensor:
        target = torch.empty(size, dtype=torch.float32)
        self._read(name, target)
        return target

    def _read(self, name: str, target: torch.Tensor) -> None:
        self._seen.add(name)
        self._file.read_into(name, target, self._count)

    def _count(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        self._progress(LoadProgress("loading weights", self._done_bytes, self._total_bytes))


def _unpermute_rows(weight: torch.Tensor, num_heads: int) -> None:
    """Undo, **in place**, llama.cpp's order of the rows of a query or key projection.

    llama.cpp rotates neighbouring pairs (0, 1), (2, 3), …; Hugging Face rotates the halves (0, D/2),
    (1, D/2 + 1), …. The converter reorders each head's rows accordingly; this puts them back.
    """
    rows, columns = weight.shape
    pairs = weight.view(num_heads, rows // num_heads // 2, 2, columns)
    weight.copy_(pairs.transpose(1, 2).reshape(rows, columns).clone())
