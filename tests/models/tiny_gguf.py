"""Write tiny random Llama models as GGUF files, for tests that need a model but not its answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from workbench.models.token_bytes import byte_alphabet

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Token ids 0, 1, 2; the 256 bytes follow as 3 … 258, then the merges."""
MERGES = ("t h", "th e", "Ġ the", "i n", "e r", "a n", "an d", "Ġ and", "o n", "r e")
FIRST_BYTE_ID = 3


def tiny_tokens(merges: Sequence[str] = MERGES) -> list[str]:
    """Return the vocabulary: special tokens, all bytes in order, one token for each merge."""
    by_byte = {byte: character for character, byte in byte_alphabet().items()}
    return [*SPECIAL_TOKENS, *(by_byte[b] for b in range(256)), *(merge.replace(" ", "") for merge in merges)]


def write_tiny_gguf(
    path: Path,
    *,
    num_layers: int = 2,
    hidden_size: int = 64,
    intermediate_size: int = 96,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    max_model_len: int = 512,
    seed: int = 0,
    merges: Sequence[str] = MERGES,
    architecture: str = "llama",
    pre_tokenizer: str = "gpt-2",
    chat_template: str | None = CHATML,
    add_bos: bool = False,
    tie_word_embeddings: bool = True,
    skip_tensors: tuple[str, ...] = (),
    skip_fields: tuple[str, ...] = (),
    rope_scaling: dict[str, str | int | float] | None = None,
    extra_tensors: dict[str, np.ndarray[Any, Any]] | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Write a random model of 269 tokens and return its tensors as stored, by GGUF name.

    Its greedy answers are arbitrary but varied: equal seeds give equal files.
    """
    tokens = tiny_tokens(merges)
    writer = gguf.GGUFWriter(path, architecture)
    fields: dict[str, Any] = {
        "context_length": max_model_len,
        "embedding_length": hidden_size,
        "block_count": num_layers,
        "feed_forward_length": intermediate_size,
        "attention.head_count": num_heads,
        "attention.head_count_kv": num_kv_heads,
        "rope.dimension_count": hidden_size // num_heads,
    }
    for name, value in fields.items():
        if name not in skip_fields:
            writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    for name, value in (rope_scaling or {}).items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(f"{architecture}.rope.scaling.{name}", value)
    _write_tokenizer(writer, tokens, merges, pre_tokenizer, chat_template, add_bos)

    rng = np.random.default_rng(seed)
    head_size = hidden_size // num_heads

    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return (rng.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    def norm() -> np.ndarray[Any, Any]:
        return (1 + 0.1 * rng.standard_normal(hidden_size)).astype(np.float32)

    # Unit-size embeddings against the small residual updates would make a tied head repeat its input.
    tensors = {"token_embd.weight": matrix(len(tokens), hidden_size), "output_norm.weight": norm()}
    if not tie_word_embeddings:
        tensors["output.weight"] = matrix(len(tokens), hidden_size)
    for i in range(num_layers):
        tensors |= {
            f"blk.{i}.attn_norm.weight": norm(),
            f"blk.{i}.attn_q.weight": matrix(num_heads * head_size, hidden_size),
            f"blk.{i}.attn_k.weight": matrix(num_kv_heads * head_size, hidden_size),
            f"blk.{i}.attn_v.weight": matrix(num_kv_heads * head_size, hidden_size),
            f"blk.{i}.attn_output.weight": matrix(hidden_size, num_heads * head_size),
            f"blk.{i}.ffn_norm.weight": norm(),
            f"blk.{i}.ffn_gate.weight": matrix(intermediate_size, hidden_size),
            f"blk.{i}.ffn_up.weight": matrix(intermediate_size, hidden_size),
            f"blk.{i}.ffn_down.weight": matrix(hidden_size, intermediate_size),
        }
    tensors |= extra_tensors or {}
    for name, tensor in tensors.items():
        if name not in skip_tensors:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _write_tokenizer(
    writer: gguf.GGUFWriter,
    tokens: list[str],
    merges: Sequence[str],
    pre_tokenizer: str,
    chat_template: str | None,
    add_bos: bool,
) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS)))
    writer.add_token_merges(list(merges))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(add_bos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
