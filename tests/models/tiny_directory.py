"""Make tiny random models with transformers and save them as Hugging Face directories.

transformers is imported inside the functions: it takes seconds, and only some tests need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.models.tiny_gguf import CHATML, MERGES, tiny_tokens

VOCAB_SIZE = 280
"""More rows than the tokenizer has tokens (269), as real models have."""
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # Large enough for attention to matter and for answers to be varied.
    "initializer_range": 0.2,
}


def write_tiny_directory(
    path: Path, family: str = "Llama", dtype: torch.dtype = torch.float32, max_shard_size: str = "1GB", **config: Any
) -> Any:
    """Save a random model with its tokenizer; return it as transformers loads it, in float32.

    family: `Llama`, `Mistral` or `Qwen2`. config: values of its configuration, over `SIZES`.
    """
    import transformers

    torch.manual_seed(0)
    model_config = getattr(transformers, f"{family}Config")(**{**SIZES, **config})
    model = getattr(transformers, f"{family}ForCausalLM")(model_config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:  # biases begin as zeros and norms as ones, which would hide mistakes
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    model.to(dtype).save_pretrained(path, max_shard_size=max_shard_size)
    write_byte_level_tokenizer(path)
    # Read again rather than converted back: conversion would leave rounded rotary frequencies behind.
    return type(model).from_pretrained(path, dtype=torch.float32).eval()


def write_byte_level_tokenizer(path: Path, chat_template: str | None = CHATML, adds_bos: bool = False) -> Any:
    """Save the tokenizer of `tiny_gguf` (byte-level BPE, 269 tokens) as a directory has it; return it."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
    from tokenizers.models import BPE

    vocabulary = {token: i for i, token in enumerate(tiny_tokens())}
    backend = Tokenizer(
        BPE(vocabulary, [(left, right) for left, _, right in (merge.partition(" ") for merge in MERGES)])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
    return _save(backend, path, chat_template, bos="<|im_start|>", eos="<|im_end|>", pad="<|endoftext|>")


def write_sentencepiece_tokenizer(path: Path) -> Any:
    """Save a tokenizer spelt as SentencePiece does, with `▁` for spaces and `<0xAB>` for bytes; return it.

    Ids: 0 <unk>, 1 <s>, 2 </s>, then the 256 bytes from 3, then 259 ▁, 260 h, 261 i, 262 ▁h, 263 ▁hi.
    """
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
    from tokenizers.models import BPE

    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "h", "i", "▁h", "▁hi"]
    merges = [("▁", "h"), ("▁h", "i")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return _save(backend, path, "{{ bos_token }}{{ messages[0]['content'] }}", bos="<s>", eos="</s>", pad="<unk>")


def _save(backend: Any, path: Path, chat_template: str | None, bos: str, eos: str, pad: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, eos_token=eos, pad_token=pad)
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(path)
    return tokenizer
