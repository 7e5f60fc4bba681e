"""What training makes small: the distance of the head's drafts from what the target would say and think."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from workbench.speculation.train.examples import Batch
from workbench.speculation.train.head_module import TrainingHead


@dataclass(frozen=True)
class Objective:
    """How the parts of the loss are weighed."""

    num_steps: int = 3
    """Tokens drafted from every position, the later ones from the head's own states."""
    step_decay: float = 0.8
    """Weight of a step beside the one before it."""
    hidden_weight: float = 0.5
    """Weight of the smooth L1 distance between hidden states beside the cross-entropy."""


def target_probabilities(head: TrainingHead, batch: Batch) -> torch.Tensor:
    """Return the target's own probabilities of the tokens that the head can draft, float32 [A, V].

    They sum to less than 1 where the target may want another token: such rows count less, and one
    whose token cannot be drafted hardly counts.
    """
    with torch.no_grad():
        return head.logits(batch.hidden).sub_(batch.log_total.unsqueeze(1)).exp_()


def loss_of(head: TrainingHead, batch: Batch, objective: Objective) -> torch.Tensor:
    """Return the weighted mean over rows and steps of cross-entropy plus distance of hidden states."""
    wanted = target_probabilities(head, batch)
    mass = wanted.sum(dim=-1)
    total, divisor = torch.zeros(()), 0.0
    outputs = head(batch.token_ids, batch.features, batch.pieces, objective.num_steps)
    for step, output in enumerate(outputs):
        rows, weights = output.rows, batch.weights[output.rows]
        logits = head.logits(output.hidden)
        cross_entropy = mass[rows] * logits.logsumexp(dim=-1) - (wanted[rows] * logits).sum(dim=-1)
        distance = F.smooth_l1_loss(output.hidden, batch.hidden[rows], reduction="none").mean(dim=-1)
        step_weight = objective.step_decay**step
        total = total + step_weight * (weights * (cross_entropy + objective.hidden_weight * distance)).sum()
        divisor += step_weight * float(weights.sum())
    return total / divisor
