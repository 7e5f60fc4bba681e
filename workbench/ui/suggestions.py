"""First-run prompts: one short, one with a long prompt (prefill can be watched), one with a long answer."""

from __future__ import annotations

from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Final

LONG_TOPIC: Final = "execmodel"
LONG_CHARACTERS: Final = 3200
"""Of the long prompt: about 800 tokens."""


@dataclass(frozen=True)
class Suggestion:
    """A prompt that one click sends."""

    label: str
    text: str


def _long_text() -> str:
    """A passage of Python's own documentation, which is at hand wherever Python is, without its underlines."""
    words = [word for word in topics[LONG_TOPIC].split() if set(word) - set("*=~-^")]
    return " ".join(words)[:LONG_CHARACTERS]


SUGGESTIONS: Final = (
    Suggestion("Why split a KV cache?", "Explain in two sentences why a KV cache is split into blocks."),
    Suggestion(
        "Summarise an 800-token text",
        "Summarise this text in three short points.\n\n" + _long_text(),
    ),
    Suggestion("Write a short story", "Write a short story about a lighthouse keeper who repairs an old computer."),
)
