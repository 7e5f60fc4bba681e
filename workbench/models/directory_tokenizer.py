"""The tokenizer of a Hugging Face directory, read by transformers' AutoTokenizer.

transformers is imported here only, and only when a directory is loaded: it takes seconds. Of what
it builds we keep the `tokenizers` object underneath, whose encoding any thread may use at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.errors import ModelLoadError
from workbench.models.chat_template import ChatTemplate
from workbench.models.config import ModelConfig
from workbench.models.directory_config import token_ids
from workbench.models.token_bytes import byte_alphabet, byte_level_bytes, sentencepiece_bytes
from workbench.models.tokenizer_parts import TokenizerParts


def read_directory_tokenizer(path: Path, config: ModelConfig) -> TokenizerParts:
    """Return the tokenizer in `path`. Tokens that end an answer are those of `config` and its own (TRAPS 21).

    Raises:
        ModelLoadError: files are missing or broken, or the kind of tokenizer is not known.
    """
    try:
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a tokenizer file makes it raise, there is no tokenizer
        reason = str(error).strip().partition("\n")[0]
        raise _error(
            path,
            f"its tokenizer cannot be read ({type(error).__name__}: {reason})",
            "fetch the model again with its tokenizer files (tokenizer.json, tokenizer_config.json)",
        ) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise _error(
            path,
            f"its tokenizer {type(tokenizer).__name__} is not one of the `tokenizers` library",
            "give a model with a tokenizer.json",
        )
    # They belong to training batches, and a text cut short would be answered as if it were whole.
    backend.no_truncation()
    backend.no_padding()

    def encode(text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    try:
        own = {key: getattr(tokenizer, key) for key in ("bos_token_id", "eos_token_id")}
        bos, eos = (token_ids(own, key, config.vocab_size) for key in own)
        added = backend.get_added_tokens_decoder()
        special = {i for i, token in added.items() if token.special} | set(tokenizer.all_special_ids)
        return TokenizerParts(
            encode=encode,
            token_bytes=_bytes_of_tokens(backend, config.vocab_size),
            bos_token_id=bos[0] if bos else config.bos_token_id,
            eos_token_ids=config.eos_token_ids | set(eos),
            special_token_ids=frozenset(i for i in special if i < config.vocab_size),
            chat_template=_chat_template(tokenizer),
        )
    except ModelLoadError as error:
        raise _error(path, f"its tokenizer: {error}", "fetch the model again") from error


def _error(path: Path, problem: str, remedy: str) -> ModelLoadError:
    return ModelLoadError(f"cannot load {path.name}: {problem}: {remedy}")


def _bytes_of_tokens(backend: Any, vocab_size: int) -> tuple[bytes, ...]:
    """Return the bytes of the ids from 0 to vocab_size - 1. Added tokens are plain text."""
    kinds = set(_kinds(backend.decoder)) | set(_kinds(backend.pre_tokenizer))
    alphabet = byte_alphabet()
    added = {i: token.content for i, token in backend.get_added_tokens_decoder().items()}
    is_byte_level = "ByteLevel" in kinds
    if not is_byte_level and not kinds & {"Metaspace", "ByteFallback", "Replace"}:
        raise ModelLoadError(
            f"its decoder ({', '.join(sorted(kinds)) or 'none'}) is neither byte-level nor of SentencePiece's kind"
        )

    def spelt(token_id: int) -> bytes:
        if token_id in added:
            return added[token_id].encode("utf-8")
        token: str | None = backend.id_to_token(token_id)
        if token is None:
            return b""
        return byte_level_bytes(token, alphabet) if is_byte_level else sentencepiece_bytes(token)

    return tuple(spelt(i) for i in range(vocab_size))


def _kinds(component: Any) -> Iterator[str]:
    """Yield the types that a decoder or pre-tokenizer is made of, those in a sequence one by one."""
    if component is None:
        return
    pending = [json.loads(component.__getstate__())]
    while pending:
        part = pending.pop()
        yield part["type"]
        pending += [*part.get("decoders", ()), *part.get("pretokenizers", ())]


def _chat_template(tokenizer: Any) -> ChatTemplate | None:
    """Return the template, the one named `default` where there are several."""
    text = tokenizer.chat_template
    if isinstance(text, dict):
        text = text.get("default")
    names = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return ChatTemplate(text, names) if text else None
