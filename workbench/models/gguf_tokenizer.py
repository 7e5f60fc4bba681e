"""Byte-level BPE from a GGUF file's metadata, on the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers.models import BPE

from workbench.errors import ModelLoadError
from workbench.models.chat_template import ChatTemplate
from workbench.models.token_bytes import byte_alphabet, byte_level_bytes
from workbench.models.tokenizer_parts import TokenizerParts

TYPE_CONTROL: Final = 3
TYPE_USER_DEFINED: Final = 4
"""Token types of the GGUF specification that this module treats apart from normal ones."""

END_OF_TURN_TOKENS: Final = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>")
"""Chat templates end a turn with one of these; files often name only one end token (TRAPS 21)."""

# Published in the tokenizer.json of Llama 3 and of Qwen 2; they differ in how digits are grouped.
_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    r"DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split_words(digits: str) -> Any:
    pattern = Regex(_WORDS.replace("DIGITS", digits))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), byte_level])


PRE_TOKENIZERS: Final[Mapping[str, Callable[[], Any]]] = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": lambda: _split_words(r"\p{N}{1,3}"),
    "qwen2": lambda: _split_words(r"\p{N}"),
}
"""How text is cut before BPE, by `tokenizer.ggml.pre`. To support another one, add a line."""


def read_gguf_tokenizer(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Return the tokenizer that the `tokenizer.*` fields of a GGUF file describe.

    Raises:
        ModelLoadError: a field is missing, or the kind of tokenizer is not known.
    """
    tokens: list[str] = list(_required(metadata, "tokenizer.ggml.tokens"))
    types: list[int] = list(metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens))
    if len(types) != len(tokens):
        raise ModelLoadError(f"the file has {len(tokens)} tokens but {len(types)} token types: it is corrupt")
    special_token_ids = frozenset(i for i, kind in enumerate(types) if kind == TYPE_CONTROL)
    bos_token_id = _token_id(metadata, "bos", len(tokens))
    named_ends = (_token_id(metadata, kind, len(tokens)) for kind in ("eos", "eot"))
    turn_ends = (i for i in special_token_ids if tokens[i] in END_OF_TURN_TOKENS)
    tokenizer = _build(metadata, tokens, types)
    adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", False))
    prefix = [bos_token_id] if adds_bos and bos_token_id is not None else []

    def encode(text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return prefix + ids if add_special_tokens else ids

    template = metadata.get("tokenizer.chat_template")
    return TokenizerParts(
        encode=encode,
        token_bytes=_bytes_of_tokens(tokens, types),
        bos_token_id=bos_token_id,
        eos_token_ids=frozenset(i for i in (*named_ends, *turn_ends) if i is not None),
        special_token_ids=special_token_ids,
        chat_template=ChatTemplate(template, _special_tokens(metadata, tokens)) if template else None,
    )


def _token_id(metadata: Mapping[str, Any], kind: str, vocab_size: int) -> int | None:
    key = f"tokenizer.ggml.{kind}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if not 0 <= int(value) < vocab_size:
        raise ModelLoadError(f"{key} = {value} is outside the vocabulary of {vocab_size} tokens")
    return int(value)


def _required(metadata: Mapping[str, Any], key: str) -> Any:
    if metadata.get(key) is None:
        raise ModelLoadError(f"the file has no {key!r}, so text cannot be turned into tokens: convert the model again")
    return metadata[key]


def _build(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    kind = _required(metadata, "tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelLoadError(f"tokenizer kind {kind!r} is not supported: only byte-level BPE ('gpt2') is")
    pre = metadata.get("tokenizer.ggml.pre", "missing")
    if pre not in PRE_TOKENIZERS:
        raise ModelLoadError(f"pre-tokenizer {pre!r} is not known: known are {', '.join(sorted(PRE_TOKENIZERS))}")
    merges = [tuple(merge.split(" ", 1)) for merge in _required(metadata, "tokenizer.ggml.merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    try:
        # Llama 3's own setting: a word that is in the vocabulary is one token, whatever the merges say.
        bpe = BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe")
    except Exception as error:  # the library raises plain Exception
        raise ModelLoadError(f"the file's merges do not fit its tokens: {error}") from error
    tokenizer = tokenizers.Tokenizer(bpe)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    for kind_id, is_special in ((TYPE_CONTROL, True), (TYPE_USER_DEFINED, False)):
        added = [t for t, kind in zip(tokens, types, strict=True) if kind == kind_id]
        tokenizer.add_tokens([AddedToken(t, normalized=False, special=is_special) for t in added])
    return tokenizer


def _special_tokens(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    """Return `bos_token` and its like, as chat templates know them."""
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    found = {f"{short}_token": metadata.get(f"tokenizer.ggml.{long}_token_id") for short, long in names.items()}
    return {name: tokens[int(i)] for name, i in found.items() if i is not None and 0 <= int(i) < len(tokens)}


def _bytes_of_tokens(tokens: Sequence[str], types: Sequence[int]) -> tuple[bytes, ...]:
    """Return each token's bytes. Added tokens are plain text; the others are spelt in GPT-2's alphabet."""
    alphabet, added = byte_alphabet(), (TYPE_CONTROL, TYPE_USER_DEFINED)
    return tuple(
        token.encode("utf-8") if kind in added else byte_level_bytes(token, alphabet)
        for token, kind in zip(tokens, types, strict=True)
    )
