"""The loss, against the sums written out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from kernels.ops import load_backend
from tests.speculation.tiny_head import random_head
from workbench.models.loader import load_model
from workbench.speculation.train.examples import Examples
from workbench.speculation.train.features import compute_features
from workbench.speculation.train.loss import Objective, loss_of, target_probabilities
from workbench.speculation.train.sequences import GeneratedSequence


@pytest.fixture(scope="module")
def target(tiny_model_path):
    return load_model(str(tiny_model_path), load_backend("cpu"), lambda _: None)


@pytest.fixture(scope="module")
def head(target):
    return random_head(target.model, num_tokens=50)


@pytest.fixture(scope="module")
def batch(target):
    generator = torch.Generator().manual_seed(3)
    texts = [
        GeneratedSequence(tuple(torch.randint(0, 269, (length,), generator=generator).tolist()), prompt, 0, 0, 0.0)
        for length, prompt in ((20, 6), (9, 4))
    ]
    return Examples(texts, list(compute_features(target.model, texts))).batch([0, 1])


def test_probabilities_are_the_targets_own_of_the_tokens_that_can_be_drafted(target, head, batch):
    all_of_them = target.model.compute_logits(batch.hidden).softmax(dim=-1)
    assert torch.allclose(target_probabilities(head, batch), all_of_them[:, head.vocabulary], atol=1e-3)


def test_loss_is_the_mean_of_cross_entropy_and_distance_over_rows_and_steps(head, batch):
    wanted = target_probabilities(head, batch)
    total, divisor = 0.0, 0.0
    outputs = head(batch.token_ids, batch.features, batch.pieces, 3)
    for step_weight, output in zip((1, 0.5, 0.25), outputs, strict=True):
        for row, hidden in zip(output.rows.tolist(), output.hidden, strict=True):
            entropy = -(wanted[row] * head.logits(hidden).log_softmax(dim=-1)).sum()
            distance = F.smooth_l1_loss(hidden, batch.hidden[row])
            total += step_weight * (entropy + 0.3 * distance).item()
            divisor += step_weight
    found = loss_of(head, batch, Objective(num_steps=3, step_decay=0.5, hidden_weight=0.3))
    assert float(found) == pytest.approx(total / divisor, rel=1e-4)


def test_rows_count_by_their_weight(head, batch):
    objective = Objective(num_steps=1)
    first_only = replace(batch, weights=torch.tensor([1.0] + [0.0] * (len(batch.best) - 1)))
    twice = replace(first_only, weights=2 * first_only.weights)
    assert float(loss_of(head, first_only, objective)) != pytest.approx(float(loss_of(head, batch, objective)))
    assert float(loss_of(head, twice, objective)) == pytest.approx(float(loss_of(head, first_only, objective)))


def test_all_trained_weights_get_a_gradient_and_the_targets_none(head, batch):
    head.zero_grad()
    loss_of(head, batch, Objective()).backward()
    assert all(float(parameter.grad.abs().sum()) > 0 for parameter in head.parameters())
    assert all(not buffer.requires_grad for buffer in head.buffers())
