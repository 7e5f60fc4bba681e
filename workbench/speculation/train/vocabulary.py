"""The tokens that a head can draft: those that the target writes most often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from workbench.speculation.train.sequences import GeneratedSequence


def frequent_tokens(sequences: Sequence[GeneratedSequence], count: int, vocab_size: int) -> list[int]:
    """Return the `count` most frequent tokens of the answers by id; of equally frequent ones, those with lower ids."""
    seen = _counts(sequences)
    return sorted(sorted(range(vocab_size), key=lambda token_id: (-seen[token_id], token_id))[:count])


def coverage(vocabulary: Collection[int], sequences: Sequence[GeneratedSequence]) -> float:
    """Return the share of the answers' tokens that is in the vocabulary."""
    seen, known = _counts(sequences), frozenset(vocabulary)
    return sum(count for token_id, count in seen.items() if token_id in known) / max(1, seen.total())


def _counts(sequences: Sequence[GeneratedSequence]) -> Counter[int]:
    return Counter(token_id for one in sequences for token_id in one.token_ids[one.num_prompt_tokens :])
