"""What a source of tokenizers (a GGUF file, a directory) provides; `Tokenizer` does the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workbench.models.chat_template import ChatTemplate


@dataclass(frozen=True, kw_only=True)
class TokenizerParts:
    """Everything of a tokenizer that depends on the kind of file it came from."""

    encode: Callable[[str, bool], list[int]]
    """(text, whether to add the special tokens that the model wants, such as a BOS) → token ids.
    Any thread may call it."""
    token_bytes: tuple[bytes, ...]
    """The bytes of every token, by id; empty for ids that no text ever becomes."""
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    special_token_ids: frozenset[int]
    """Tokens that are marks, not text: left out of answers unless asked for."""
    chat_template: ChatTemplate | None
