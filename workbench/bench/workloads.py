"""What is sent to an engine when its speed is measured: seeded, the same for every engine."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Final

from workbench.bench.prompts import english_text
from workbench.models.tokenizer import Tokenizer

OUTPUT_LENGTHS: Final = (128, 64, 96, 32, 64, 128)
"""Repeated over the requests: 2,048 tokens at 24 of them."""
CONTEXT_WORDS: Final = 60

QUESTIONS: Final = (
    "Explain what a hash table is.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "List five things to check before a long bicycle tour.",
    "What is the difference between a process and a thread? Give one example for each and say which is cheaper.",
    "Hi!",
    "Translate to French: The library closes at eight in the evening.",
    "Why is the sky blue?",
    "Give me a recipe for a simple vegetable soup with what is usually at home: onions, carrots, potatoes, some herbs.",
    "Summarise the plot of Romeo and Juliet in three sentences.",
    "How do vaccines work?",
    "Name the planets of the solar system in order of their distance from the sun and say one thing about each.",
    "Write a polite letter to a neighbour whose dog barks at night.",
)


@dataclass(frozen=True)
class WorkItem:
    """One request: its prompt and exactly how many tokens it must produce."""

    prompt_token_ids: tuple[int, ...]
    max_tokens: int


def chat_workload(num_requests: int, seed: int, tokenizer: Tokenizer) -> list[WorkItem]:
    """Return chat prompts of mixed length, every third with about 60 extra words of context.

    The number of output tokens depends on `num_requests` only; questions and context on `seed`.
    """
    rng = random.Random(seed)
    words = english_text().split()
    lengths = itertools.islice(itertools.cycle(OUTPUT_LENGTHS), num_requests)
    items = []
    for index, max_tokens in enumerate(lengths):
        content = rng.choice(QUESTIONS)
        if index % 3 == 2:
            start = rng.randrange(len(words) - CONTEXT_WORDS)
            content = f"Context: {' '.join(words[start : start + CONTEXT_WORDS])}\n\n{content}"
        prompt = tokenizer.encode_chat([{"role": "user", "content": content}])
        items.append(WorkItem(tuple(prompt), max_tokens))
    return items
