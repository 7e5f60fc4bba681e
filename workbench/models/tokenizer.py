"""Byte-level BPE from a GGUF file's metadata, on the `tokenizers` library.

Bytes are the one truth here: every token has exact bytes, and decode() is the UTF-8 reading of
their concatenation. Streaming relies on it to never split or repeat a character.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers.models import BPE

from workbench.errors import InvalidPromptError, ModelLoadError
from workbench.models.chat_template import ChatTemplate

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


class Tokenizer:
    """Text to token ids and back. Immutable after construction, so any thread may use it."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        """metadata: the `tokenizer.*` fields of a GGUF file, without that prefix changed.

        Raises:
            ModelLoadError: a field is missing, or the kind of tokenizer is not known.
        """
        tokens: list[str] = list(_required(metadata, "tokenizer.ggml.tokens"))
        types: list[int] = list(metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens))
        if len(types) != len(tokens):
            raise ModelLoadError(f"the file has {len(tokens)} tokens but {len(types)} token types: it is corrupt")
        self.vocab_size = len(tokens)
        self.bos_token_id = self._token_id(metadata, "tokenizer.ggml.bos_token_id")
        self.special_token_ids = frozenset(i for i, kind in enumerate(types) if kind == TYPE_CONTROL)
        self.eos_token_ids = self._find_eos(metadata, tokens)
        self._adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", False)) and self.bos_token_id is not None
        self._tokenizer = _build(metadata, tokens, types)
        self._bytes = _bytes_of_tokens(tokens, types)
        template = metadata.get("tokenizer.chat_template")
        self._chat_template = ChatTemplate(template, _special_tokens(metadata, tokens)) if template else None

    @property
    def has_chat_template(self) -> bool:
        """Whether the model file says how to turn messages into a prompt."""
        return self._chat_template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids. With add_special_tokens a leading BOS is added where the model wants one."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if add_special_tokens and self._adds_bos and self.bos_token_id is not None:
            ids.insert(0, self.bos_token_id)
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids; bytes that are not valid UTF-8 become U+FFFD."""
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        return b"".join(self.token_bytes(i) for i in ids if i not in skipped).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes of a token, the same in every context.

        Raises:
            InvalidPromptError: the id is outside the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise InvalidPromptError(
                f"token id {token_id} is not in the vocabulary: ids go from 0 to {self.vocab_size - 1}"
            )
        return self._bytes[token_id]

    def render_chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the prompt text for messages ({"role", "content"}), by the model's own chat template.

        Raises:
            InvalidPromptError: the model has no template, or it refuses the messages.
        """
        if self._chat_template is None:
            raise InvalidPromptError("this model file has no chat template: send a plain prompt instead")
        return self._chat_template.render(messages, add_generation_prompt)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the prompt's token ids for messages, ready for the answer to follow.

        The template writes the BOS itself where the model wants one, so none is added (TRAPS 24).
        """
        return self.encode(self.render_chat(messages), add_special_tokens=False)

    def _token_id(self, metadata: Mapping[str, Any], key: str) -> int | None:
        value = metadata.get(key)
        if value is None:
            return None
        if not 0 <= int(value) < self.vocab_size:
            raise ModelLoadError(f"{key} = {value} is outside the vocabulary of {self.vocab_size} tokens")
        return int(value)

    def _find_eos(self, metadata: Mapping[str, Any], tokens: Sequence[str]) -> frozenset[int]:
        named = [self._token_id(metadata, f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
        turns = [i for i in self.special_token_ids if tokens[i] in END_OF_TURN_TOKENS]
        return frozenset(i for i in [*named, *turns] if i is not None)


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


def _bytes_of_tokens(tokens: Sequence[str], types: Sequence[int]) -> list[bytes]:
    """Return each token's bytes. Added tokens are plain text; the others are spelt in GPT-2's alphabet."""
    alphabet = byte_alphabet()
    added = (TYPE_CONTROL, TYPE_USER_DEFINED)
    result = []
    for token, kind in zip(tokens, types, strict=True):
        spelt = None if kind in added else [alphabet.get(character) for character in token]
        plain = spelt is None or None in spelt
        result.append(token.encode("utf-8") if plain else bytes(b for b in spelt or [] if b is not None))
    return result


def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable stand-in for each byte: itself where printable, else U+0100 and up in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
