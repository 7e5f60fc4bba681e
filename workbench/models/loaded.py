"""What loading a model reports on its way, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workbench.models.config import ModelConfig
from workbench.models.llama import LlamaForCausalLM
from workbench.models.tokenizer import Tokenizer


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
    """The GGUF file, or the directory of a Hugging Face model."""
    weight_bytes: int
    """Bytes of the weights in memory."""
    file_bytes: int
    source_format: str
    """How most weights are stored, for example `GGUF Q4_1` or `safetensors BF16`. In memory they are float32."""
    notices: tuple[str, ...] = ()
    """Features of the model that are not active, in words for people (TRAPS 30)."""
