"""Text to token ids and back, the same for every kind of model file.

Bytes are the one truth here: every token has exact bytes, and decode() is the UTF-8 reading of
their concatenation. Streaming relies on it to never split or repeat a character.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.errors import InvalidPromptError
from workbench.models.gguf_tokenizer import read_gguf_tokenizer
from workbench.models.tokenizer_parts import TokenizerParts


class Tokenizer:
    """Text to token ids and back. Immutable after construction, so any thread may use it."""

    def __init__(self, source: TokenizerParts | Mapping[str, Any]) -> None:
        """source: parts from any kind of file, or simply the metadata of a GGUF file.

        Raises:
            ModelLoadError: a field of the metadata is missing, or the kind of tokenizer is not known.
        """
        parts = source if isinstance(source, TokenizerParts) else read_gguf_tokenizer(source)
        self._encode, self._bytes, self._chat_template = parts.encode, parts.token_bytes, parts.chat_template
        self.vocab_size = len(parts.token_bytes)
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.special_token_ids = parts.special_token_ids

    @property
    def has_chat_template(self) -> bool:
        """Whether the model file says how to turn messages into a prompt."""
        return self._chat_template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids. With add_special_tokens a leading BOS is added where the model wants one."""
        return self._encode(text, add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids; bytes that are not valid UTF-8 become U+FFFD.

        A space that begins a SentencePiece text stays: what a piece of text is does not depend on
        whether it comes first.
        """
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        return b"".join(self.token_bytes(i) for i in ids if i not in skipped).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes of a token, the same in every context.

        Empty for ids that are no token: models may have more rows than their tokenizer has tokens.

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
