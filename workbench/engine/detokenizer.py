"""Tokens to text as they come, and stop texts found across token boundaries.

A byte-level token is a piece of UTF-8 that may end inside a character. The decoder keeps such a
piece back until the character is whole, so nothing half is ever shown and nothing shown is ever
taken back. A stop text may likewise be spread over tokens: whatever could still become one is held
back, and released as soon as it cannot.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import Protocol


class TokenBytes(Protocol):
    """The part of a tokenizer that detokenizing needs."""

    special_token_ids: frozenset[int]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token stands for."""


class IncrementalDetokenizer:
    """Byte-exact incremental decoding: the pieces joined equal one decode of all tokens."""

    def __init__(self, tokenizer: TokenBytes, skip_special_tokens: bool = True) -> None:
        """Decode for one request, from an empty output."""
        self._tokenizer = tokenizer
        self._skipped: Collection[int] = tokenizer.special_token_ids if skip_special_tokens else ()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take one token; return the text that became whole with it, possibly none."""
        if token_id in self._skipped:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """Return what an unfinished character leaves: one replacement mark, or nothing."""
        return self._decoder.decode(b"", final=True)


class StopMatcher:
    """Finds the first of several stop texts in a stream; holds back what could become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Watch for `stops`, none of them empty."""
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Take text; return what is certain now, and the stop text if one is complete.

        Once a stop text is complete, what is returned ends right before it.
        """
        self._held += text
        found = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held]
        if found:
            position, stop = min(found, key=lambda hit: (hit[0], len(hit[1])))
            released, self._held = self._held[:position], ""
            return released, stop
        keep = max((self._open_prefix(stop) for stop in self._stops), default=0)
        split = len(self._held) - keep
        released, self._held = self._held[:split], self._held[split:]
        return released, None

    def flush(self) -> str:
        """Return what was held back: the stream is over, it cannot become a stop text."""
        released, self._held = self._held, ""
        return released

    def _open_prefix(self, stop: str) -> int:
        """Length of the longest proper prefix of `stop` with which the held text ends."""
        for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:length]):
                return length
        return 0


class OutputText:
    """The text of one request as it grows: detokenizer, then stop matcher."""

    def __init__(self, tokenizer: TokenBytes, stops: Sequence[str] = (), skip_special_tokens: bool = True) -> None:
        """Begin an empty output."""
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens)
        self._matcher = StopMatcher(stops)
        self._certain: list[str] = []
        self._is_stopped = False

    def push(self, token_id: int, may_stop: bool = True) -> str | None:
        """Take one token; return the stop text that it completed, if any.

        Text of tokens that may not stop (min_tokens) is certain at once and never part of a stop text.
        """
        text = self._detokenizer.push(token_id)
        if may_stop:
            return self._match(text)
        self._certain.append(text)
        return None

    def flush(self) -> None:
        """Release what was held back, unless a stop text has ended the output."""
        if self._is_stopped:
            return
        if self._match(self._detokenizer.flush()) is None:
            self._certain.append(self._matcher.flush())
        self._is_stopped = True

    def take(self) -> str:
        """Return the text that became certain since the last call."""
        text = "".join(self._certain)
        self._certain.clear()
        return text

    def _match(self, text: str) -> str | None:
        released, stop = self._matcher.push(text)
        self._certain.append(released)
        self._is_stopped = self._is_stopped or stop is not None
        return stop
