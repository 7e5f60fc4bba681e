"""Loads a Hugging Face directory: config.json, safetensors, tokenizer files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from kernels.ops import Ops
from workbench.models.directory_config import read_directory_config
from workbench.models.directory_tokenizer import read_directory_tokenizer
from workbench.models.llama import LlamaForCausalLM
from workbench.models.loaded import LoadedModel, LoadProgress
from workbench.models.safetensors_directory import SafetensorsDirectory
from workbench.models.tokenizer import Tokenizer
from workbench.models.weights import TensorNames, WeightReader

NAMES: Final = TensorNames(
    embedding="model.embed_tokens",
    final_norm="model.norm",
    head="lm_head",
    layer="model.layers.{}.",
    input_norm="input_layernorm",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    output="self_attn.o_proj",
    post_attention_norm="post_attention_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
)


def load_directory(path: Path, name: str, ops: Ops, progress: Callable[[LoadProgress], None]) -> LoadedModel:
    """Load the model in the directory `path`, to be called `name`.

    Raises:
        ModelLoadError: files are missing, truncated, corrupt or of an unknown kind; names file and remedy.
    """
    progress(LoadProgress("reading metadata", 0, 0))
    described = read_directory_config(path, name)
    files = SafetensorsDirectory(path)
    progress(LoadProgress("reading the tokenizer", 0, 0))
    tokenizer = Tokenizer(read_directory_tokenizer(path, described))
    config = replace(described, bos_token_id=tokenizer.bos_token_id, eos_token_ids=tokenizer.eos_token_ids)
    # Checkpoints of early releases hold the rotary frequencies, which the configuration implies.
    weights = WeightReader(files, NAMES, config, progress).read(lambda tensor: tensor.endswith("rotary_emb.inv_freq"))
    return LoadedModel(
        config=config,
        model=LlamaForCausalLM(config, weights, ops),
        tokenizer=tokenizer,
        path=path,
        weight_bytes=weights.num_bytes,
        file_bytes=files.file_bytes,
        source_format=files.source_format,
    )
