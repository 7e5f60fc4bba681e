"""How many drafted tokens the target would accept at temperature 0, on texts that it wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from workbench.speculation.train.examples import Batch
from workbench.speculation.train.head_module import TrainingHead


@dataclass(frozen=True)
class Acceptance:
    """What a head is worth on some texts."""

    num_positions: int
    """Positions that were drafted from, whatever the temperature of their text."""
    agreement: float
    """Share of them where the head's likeliest token is the target's."""
    by_position: tuple[float, ...]
    """In answers at temperature 0: share of first drafted tokens that are accepted; of second ones behind an
    accepted first; and so on."""
    tokens_per_step: float
    """In these answers: tokens that a step of the engine yields when each draft is as long as `by_position`."""


class _Tally:
    """Counts over batches."""

    def __init__(self, num_steps: int) -> None:
        self.num_positions = self.num_agreed = 0
        self.tried, self.accepted = [0] * num_steps, [0] * num_steps
        self.num_tokens = self.num_engine_steps = 0

    def add_answer(self, hits: torch.Tensor) -> None:
        """Take an answer at temperature 0: bool [n, steps], where a draft from each row is right."""
        accepted = hits.int().cumprod(dim=1)
        for step in range(hits.shape[1]):
            # A draft whose token would lie behind the answer is not tried.
            is_tried = accepted[: len(hits) - step, step - 1] if step else torch.ones(len(hits), dtype=torch.int32)
            self.tried[step] += int(is_tried.sum())
            self.accepted[step] += int(accepted[:, step].sum())
        lengths = accepted.sum(dim=1).tolist()
        row = 0
        while row < len(lengths):
            self.num_engine_steps += 1
            row += lengths[row] + 1
        self.num_tokens += len(lengths)

    def result(self) -> Acceptance:
        return Acceptance(
            num_positions=self.num_positions,
            agreement=self.num_agreed / max(1, self.num_positions),
            by_position=tuple(right / max(1, all_) for right, all_ in zip(self.accepted, self.tried, strict=True)),
            tokens_per_step=self.num_tokens / max(1, self.num_engine_steps),
        )


@torch.no_grad()
def measure(head: TrainingHead, batches: Iterable[Batch], num_steps: int = 4) -> Acceptance:
    """Draft `num_steps` tokens from every position of the answers.

    The batches hold no prompt rows (`prompt_weight` 0). While a text's tokens are the target's likeliest, as at
    temperature 0, and drafts so far are right, the tokens of the text are the drafted ones.
    """
    tally = _Tally(num_steps)
    for batch in batches:
        # Row i, step s: whether the token drafted by step s at row i is the target's.
        right = torch.zeros(len(batch.best), num_steps, dtype=torch.bool)
        for step, output in enumerate(head(batch.token_ids, batch.features, batch.pieces, num_steps)):
            drafted = head.vocabulary[head.logits(output.hidden).argmax(dim=-1)]
            right[output.rows, step] = drafted == batch.best[output.rows]
        tally.num_positions += len(right)
        tally.num_agreed += int(right[:, 0].sum())
        counts = [piece.num_drafted for piece in batch.pieces]
        for one, is_greedy in zip(right.split(counts), batch.is_greedy, strict=True):
            if is_greedy:
                tally.add_answer(_by_start(one))
    return tally.result()


def _by_start(right: torch.Tensor) -> torch.Tensor:
    """From [row that was computed, step] to [row that the draft began at, step]: step s is s rows further on."""
    shifted = torch.zeros_like(right)
    for step in range(right.shape[1]):
        shifted[: max(0, len(right) - step), step] = right[step:, step]
    return shifted
