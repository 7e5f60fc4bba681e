"""Prompts that exactness is shown on: raw and chat, 1 to 900 tokens, on and beside block boundaries."""

from __future__ import annotations

from typing import Final

from workbench.bench.report import ROOT
from workbench.models.tokenizer import Tokenizer

RAW: Final = {
    "raw_one_token": "The",
    "raw_story": "Once upon a time, in a village by the sea,",
    "raw_digits": "1, 2, 3, 5, 8, 13, 21, 34,",
    "raw_code": "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n",
    "raw_unicode": "Die Straße führt über die Brücke. 东京是日本的首都。 🙂🙃 naïve café —",
}
RAW_OF_LENGTH: Final = (15, 16, 17, 64, 257, 512, 900)
"""English text cut to so many tokens."""
CHATS: Final[dict[str, list[dict[str, str]]]] = {
    "chat_short": [{"role": "user", "content": "What is the capital of France?"}],
    "chat_system": [
        {"role": "system", "content": "You are a pirate. Answer in one sentence."},
        {"role": "user", "content": "How do I boil an egg?"},
    ],
    "chat_turns": [
        {"role": "user", "content": "Name a prime number above 10."},
        {"role": "assistant", "content": "11 is a prime number above 10."},
        {"role": "user", "content": "And the next one? Explain step by step."},
    ],
}
LONG_CHAT_WORDS: Final = 400


def english_text() -> str:
    """Return about 1,500 words of running English that never change: this project's licence."""
    return " ".join((ROOT / "LICENSE").read_text(encoding="utf-8").split())


def exactness_prompts(tokenizer: Tokenizer) -> dict[str, list[int]]:
    """Return name → token ids of 16 prompts."""
    text = english_text()
    ids = tokenizer.encode(text)
    prompts = {name: tokenizer.encode(raw) for name, raw in RAW.items()}
    prompts |= {f"raw_{length}_tokens": ids[:length] for length in RAW_OF_LENGTH}
    prompts |= {name: tokenizer.encode_chat(messages) for name, messages in CHATS.items()}
    excerpt = " ".join(text.split()[800 : 800 + LONG_CHAT_WORDS])
    prompts["chat_long"] = tokenizer.encode_chat([{"role": "user", "content": f"Summarise this:\n{excerpt}"}])
    return prompts
