"""Texts with their features as batches, in an order that depends on seed and epoch alone.

Row p of a text takes the state of position p and tokens p - 1 (the first one where p is 0), p and p + 1. It is to
draft token p + 2 with the probabilities that the target has at position p + 1. Drafted is what the engine would draft:
tokens of the answer from its second one on, since the first comes with the prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from workbench.errors import ConfigurationError
from workbench.speculation.train.features import Features
from workbench.speculation.train.head_module import Piece
from workbench.speculation.train.sequences import GeneratedSequence, read_sequences, shard_paths


class FeatureSource(Protocol):
    """Features by the number of a text, such as `FeatureFiles`."""

    def __getitem__(self, number: int) -> Features:
        """Return the features of one text."""


@dataclass(frozen=True)
class Batch:
    """Texts side by side: T rows, A of which are drafted for."""

    token_ids: torch.Tensor
    """int64 [T, 3]: the tokens before, at and behind each row's position."""
    features: torch.Tensor
    """float32 [T, C]: the target's state of each row."""
    pieces: tuple[Piece, ...]
    hidden: torch.Tensor
    """float32 [A, C]: the target's state of the next position, which a row is to come close to."""
    log_total: torch.Tensor
    """float32 [A]: log of the sum of exp(logits) there."""
    best: torch.Tensor
    """int64 [A]: the target's likeliest token there."""
    weights: torch.Tensor
    """float32 [A]: 1 in the answer, less in the prompt."""
    is_greedy: tuple[bool, ...]
    """Of each piece: its answer is the target's at temperature 0."""


class Examples:
    """The texts of a file or a folder that are long enough, with their features."""

    def __init__(
        self, sequences: Sequence[GeneratedSequence], features: FeatureSource, prompt_weight: float = 0.0
    ) -> None:
        """`prompt_weight`: of rows in the prompt; with 0 they are not drafted for at all."""
        self.sequences, self._features, self._prompt_weight = sequences, features, prompt_weight
        self.numbers = [number for number, one in enumerate(sequences) if one.num_generated >= 2]

    def num_drafted(self, number: int) -> int:
        """Rows of a text's answer."""
        return self.sequences[number].num_generated - 1

    def order(self, seed: int, epoch: int, batch_tokens: int) -> list[list[int]]:
        """Return one epoch's batches of at least `batch_tokens` drafted tokens, the last perhaps of fewer."""
        numbers = list(self.numbers)
        random.Random(f"{seed} {epoch}").shuffle(numbers)
        return _gather(numbers, self.num_drafted, batch_tokens)

    def in_order(self, batch_tokens: int, most_tokens: int | None = None) -> list[list[int]]:
        """Return batches of all texts in their own order, or of the first with `most_tokens` tokens together."""
        batches = _gather(self.numbers, self.num_drafted, batch_tokens)
        if most_tokens is None:
            return batches
        total, chosen = 0, []
        for numbers in batches:
            if total >= most_tokens:
                break
            chosen.append(numbers)
            total += sum(map(self.num_drafted, numbers))
        return chosen

    def batch(self, numbers: Iterable[int]) -> Batch:
        """Return some texts as a batch."""
        texts = [(self.sequences[number], self._features[number]) for number in numbers]
        pieces, drafted, weights = [], [], []
        for one, features in texts:
            answer = one.num_prompt_tokens - 1
            piece = Piece(len(one.token_ids) - 2, answer if self._prompt_weight == 0 else 0)
            row_weights = torch.ones(piece.num_drafted)
            row_weights[: answer - piece.first] = self._prompt_weight
            pieces.append(piece)
            weights.append(row_weights)
            drafted.append(
                tuple(each[piece.first + 1 : -1] for each in (features.hidden, features.log_total, features.best))
            )
        hidden, log_total, best = (torch.cat(each) for each in zip(*drafted, strict=True))
        return Batch(
            token_ids=torch.cat([neighbours(one.token_ids[:-1]) for one, _ in texts]),
            features=torch.cat([features.hidden[:-2] for _, features in texts]).float(),
            pieces=tuple(pieces),
            hidden=hidden.float(),
            log_total=log_total,
            best=best.long(),
            weights=torch.cat(weights),
            is_greedy=tuple(one.temperature == 0 for one, _ in texts),
        )


def neighbours(token_ids: Sequence[int]) -> torch.Tensor:
    """Return the tokens before, at and behind each position but the last, int64 [n - 1, 3]; before the first: it."""
    return torch.tensor([token_ids[0], *token_ids]).unfold(0, 3, 1)


def read_data(path: Path) -> list[GeneratedSequence]:
    """Return the texts of a packed file, or of all shards of a folder.

    Raises:
        ConfigurationError: there is no such file, or no shard in the folder.
    """
    paths = shard_paths(path) if path.is_dir() else [path]
    if not paths or not all(each.is_file() for each in paths):
        raise ConfigurationError(f"there are no texts in {path}: name what `generate --out` or `pack` wrote")
    return [one for each in paths for one in read_sequences(each)]


def _gather(numbers: Sequence[int], size: Callable[[int], int], least: int) -> list[list[int]]:
    """Consecutive numbers whose sizes together reach `least`; the last may stay below."""
    batches: list[list[int]] = [[]]
    total = 0
    for number in numbers:
        if total >= least:
            batches.append([])
            total = 0
        batches[-1].append(number)
        total += size(number)
    return [batch for batch in batches if batch]
