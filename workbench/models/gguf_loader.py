"""Loads a GGUF file: configuration, tokenizer and weights from one file's own metadata and tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from kernels.ops import Ops
from workbench.errors import ModelLoadError
from workbench.models.config import ModelConfig
from workbench.models.gguf_file import GGUFFile
from workbench.models.llama import LlamaForCausalLM, LlamaWeights
from workbench.models.loaded import LoadedModel, LoadProgress
from workbench.models.rope import RopeScaling, read_rope, stretched_length
from workbench.models.tokenizer import Tokenizer
from workbench.models.weights import TensorNames, WeightReader

ARCHITECTURES: Final = ("llama",)

NAMES: Final = TensorNames(
    embedding="token_embd",
    final_norm="output_norm",
    head="output",
    layer="blk.{}.",
    input_norm="attn_norm",
    query="attn_q",
    key="attn_k",
    value="attn_v",
    output="attn_output",
    post_attention_norm="ffn_norm",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
)

ROPE_DIVISORS: Final = "rope_freqs.weight"
"""Divisors of the rotary frequencies: Llama 3's scaling, worked out by the converter."""


def load_gguf(path: Path, name: str, ops: Ops, progress: Callable[[LoadProgress], None]) -> LoadedModel:
    """Load the file at `path`, to be called `name`.

    Raises:
        ModelLoadError: truncated, corrupt or of an unknown kind; names the file and the remedy.
    """
    progress(LoadProgress("reading metadata", 0, 0))
    file = GGUFFile(path)
    architecture = file.field("general.architecture")
    if architecture not in ARCHITECTURES:
        raise file.error(f"architecture {architecture!r} is not supported", f"supported: {', '.join(ARCHITECTURES)}")
    try:
        tokenizer = Tokenizer(file.metadata)
    except ModelLoadError as error:
        raise ModelLoadError(f"cannot load {path.name}: {error}") from error
    config = _read_config(file, name, tokenizer)
    weights = _read_weights(file, config, progress)
    return LoadedModel(
        config=config,
        model=LlamaForCausalLM(config, weights, ops),
        tokenizer=tokenizer,
        path=path,
        weight_bytes=weights.num_bytes,
        file_bytes=file.file_bytes,
        source_format=file.source_format,
    )


def _read_config(file: GGUFFile, name: str, tokenizer: Tokenizer) -> ModelConfig:
    def number(key: str) -> Any:
        value = file.field(f"llama.{key}")
        if not isinstance(value, int | float) or value <= 0:
            raise file.error(f"llama.{key} = {value!r} is not a positive number", "convert the model again")
        return value

    _refuse_variants(file)
    hidden_size, num_heads = number("embedding_length"), number("attention.head_count")
    head_size = file.metadata.get("llama.attention.key_length") or hidden_size // num_heads
    theta, scaling = _read_rope(file, number("context_length"))
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
        max_position_embeddings=stretched_length(number("context_length"), scaling),
        rms_norm_eps=float(number("attention.layer_norm_rms_epsilon")),
        rope_theta=theta,
        rope_scaling=scaling,
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


def _read_rope(file: GGUFFile, context_length: int) -> tuple[float, RopeScaling]:
    """Return theta and scaling: GGUF's keys say the same as a config.json, by other names."""
    prefix = "llama.rope.scaling."
    given = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    rope_type = given.pop("type", "none")
    given.pop("finetuned", None)
    if rope_type == "none":
        rope_type, given = "default", {}
    names = {"factor": "factor", "original_context_length": "original_max_position_embeddings"}
    names |= {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise file.error(f"its rotary scaling has {unknown[0]!r}, which is not supported", "give a model without it")
    values = {names[key]: value for key, value in given.items()}
    try:
        return read_rope(
            {
                "max_position_embeddings": context_length,
                "rope_theta": file.metadata.get("llama.rope.freq_base"),
                "rope_scaling": {"rope_type": rope_type, **values},
            }
        )
    except ModelLoadError as error:
        raise file.error(f"rotary scaling: {error}", "give a model without it") from error


def _refuse_variants(file: GGUFFile) -> None:
    """Refuse what would compute something else than the file means."""
    if file.metadata.get("llama.expert_count", 0):
        raise file.error("it is a mixture of experts", "give a dense model")
    rotated, head_size = (
        file.metadata.get("llama.rope.dimension_count"),
        file.metadata.get("llama.attention.key_length"),
    )
    head_size = head_size or file.field("llama.embedding_length") // max(file.field("llama.attention.head_count"), 1)
    if rotated not in (None, head_size):
        raise file.error(f"only {rotated} of {head_size} dimensions are rotated", "give a model that rotates all")


def _read_weights(file: GGUFFile, config: ModelConfig, progress: Callable[[LoadProgress], None]) -> LlamaWeights:
    divisors = None
    if ROPE_DIVISORS in file.tensor_names:
        divisors = torch.empty(config.head_size // 2, dtype=torch.float32)
        file.read_into(ROPE_DIVISORS, divisors, lambda _: None)
    weights = WeightReader(file, NAMES, config, progress).read(expects_more=lambda name: name == ROPE_DIVISORS)
    q_rows, kv_rows = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    for layer in weights.layers:
        qkv = layer.qkv.dense()  # the very memory: nothing is packed yet
        _unpermute_rows(qkv[:q_rows], config.num_heads)
        _unpermute_rows(qkv[q_rows : q_rows + kv_rows], config.num_kv_heads)
    return replace(weights, rope_factors=divisors)


def _unpermute_rows(weight: torch.Tensor, num_heads: int) -> None:
    """Undo, **in place**, llama.cpp's order of the rows of a query or key projection.

    llama.cpp rotates neighbouring pairs (0, 1), (2, 3), …; Hugging Face rotates the halves (0, D/2),
    (1, D/2 + 1), …. The converter reorders each head's rows accordingly; this puts them back.
    """
    rows, columns = weight.shape
    pairs = weight.view(num_heads, rows // num_heads // 2, 2, columns)
    weight.copy_(pairs.transpose(1, 2).reshape(rows, columns).clone())
