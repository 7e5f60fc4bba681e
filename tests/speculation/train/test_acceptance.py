"""How acceptance is counted, on drafts made up for the purpose."""

from __future__ import annotations

import torch

from workbench.speculation.train.acceptance import measure
from workbench.speculation.train.examples import Batch
from workbench.speculation.train.head_module import Piece, StepOutput

RIGHT, WRONG = 7, 8


class ScriptedHead:
    """Drafts what it was told, by step and row."""

    vocabulary = torch.arange(10)

    def __init__(self, *steps: dict[int, int]) -> None:
        self._steps = steps

    def __call__(self, token_ids, features, pieces, num_steps):
        for step in self._steps[:num_steps]:
            yield StepOutput(torch.tensor([[float(token)] for token in step.values()]), torch.tensor(list(step)))

    def logits(self, hidden):
        return -(hidden - torch.arange(10)).abs()


def batch_of(*pieces: tuple[int, bool]) -> Batch:
    count = sum(length for length, _ in pieces)
    nothing = torch.zeros(count)
    return Batch(
        nothing,
        nothing,
        tuple(Piece(length, 0) for length, _ in pieces),
        nothing,
        nothing,
        torch.full((count,), RIGHT),
        nothing,
        tuple(is_greedy for _, is_greedy in pieces),
    )


def test_later_positions_count_behind_accepted_ones_only():
    first = dict(enumerate([RIGHT, RIGHT, WRONG, RIGHT, RIGHT, RIGHT]))
    second = dict(enumerate([RIGHT, WRONG, RIGHT, RIGHT, RIGHT], start=1))
    found = measure(ScriptedHead(first, second), [batch_of((6, True))], num_steps=2)  # type: ignore[arg-type]
    assert found.num_positions == 6
    assert found.agreement == 5 / 6
    # Drafts from rows 0, 1, 3 and 4 have a right first token and room for a second, which is wrong from row 1.
    assert found.by_position == (5 / 6, 3 / 4)
    # Rows 0 (2 accepted), 3 (2 accepted): six tokens in two steps.
    assert found.tokens_per_step == 3


def test_only_answers_at_temperature_0_count_by_position():
    first = {0: WRONG, 1: RIGHT, 2: WRONG, 3: RIGHT}
    batch = batch_of((2, False), (2, True))
    found = measure(ScriptedHead(first), [batch], num_steps=1)  # type: ignore[arg-type]
    assert (found.num_positions, found.agreement) == (4, 0.5)
    assert found.by_position == (0.5,)
    assert found.tokens_per_step == 1


def test_batches_are_added_up():
    right, wrong = ScriptedHead({0: RIGHT}), batch_of((1, True))
    found = measure(right, [wrong, wrong, wrong], num_steps=1)  # type: ignore[arg-type]
    assert (found.num_positions, found.by_position, found.tokens_per_step) == (3, (1.0,), 1.0)


def test_nothing_to_measure_is_no_error():
    found = measure(ScriptedHead(), [], num_steps=2)  # type: ignore[arg-type]
    assert (found.num_positions, found.by_position, found.tokens_per_step) == (0, (0.0, 0.0), 0.0)
