"""`probabilities` is what `sample` draws from: what drafts are verified against must be exactly that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.plain_sampling import p_value, plain_probabilities
from workbench.engine.sampler import SamplingBatch, probabilities, sample
from workbench.sampling_params import SamplingParams

NUM_DRAWS = 1_000
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 50},
    "top_k beyond the candidates": {"top_k": 1500},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.3},
    "top_k and top_p": {"top_k": 1500, "top_p": 0.9},
    "min_p and top_p": {"min_p": 0.05, "top_p": 0.6},
    "all": {"temperature": 1.3, "min_p": 0.02, "top_k": 100, "top_p": 0.5},
}


def draw(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """Sample one row of logits again and again; return the counts [vocab]."""
    vocab_size = len(logits)
    counts = np.zeros(vocab_size, dtype=np.int64)
    for start in range(0, NUM_DRAWS, 500):
        batch = SamplingBatch.build([params] * 500, list(range(start, start + 500)), [7] * 500, vocab_size)
        counts += np.bincount(sample(logits.repeat(500, 1), batch).numpy(), minlength=vocab_size)
    return counts


def computed(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    batch = SamplingBatch.build([params], [0], [0], len(logits))
    return probabilities(logits.unsqueeze(0), batch)[0].numpy()


@pytest.mark.parametrize("levels", [0, 5], ids=["all different", "many ties"])
@pytest.mark.parametrize("vocab_size", [300, 2000])
@pytest.mark.parametrize("name", SETTINGS)
def test_samples_come_from_the_computed_probabilities(name, vocab_size, levels):
    """With ties, which of equal tokens top-p keeps is an accident, but both must meet the same."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(vocab_size, generator=generator)
    if levels:
        logits = torch.randint(levels, (vocab_size,), generator=generator) / 2.0
    params = SamplingParams(**SETTINGS[name])

    assert p_value(draw(logits, params), computed(logits, params)) > 1e-6


@pytest.mark.parametrize("vocab_size", [300, 2000])
@pytest.mark.parametrize("name", SETTINGS)
def test_probabilities_follow_the_definition(name, vocab_size):
    logits = 2 * torch.randn(vocab_size, generator=torch.Generator().manual_seed(4))
    params = SamplingParams(**SETTINGS[name])

    expected = plain_probabilities(logits.numpy(), params, [], [], [])

    np.testing.assert_array_equal(computed(logits, params) > 0, expected > 0)
    np.testing.assert_allclose(computed(logits, params), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, {0, 1, 2}),  # of equal logits at the border all are kept
        ({"top_k": 4}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.5}, {0, 1}),  # the one that crosses the threshold is kept, its equals behind it are not
        ({"min_p": 1.0}, {0}),
        ({"min_p": 0.5}, {0, 1, 2}),
        ({}, {0, 1, 2, 3, 4, 5}),
    ],
)
def test_tokens_that_are_kept_among_ties(params, kept):
    logits = torch.tensor([3.0, 2.5, 2.5, 1.5, 1.5, 0.0])
    found = set(np.flatnonzero(computed(logits, SamplingParams(**params))).tolist())
    drawn = set(np.flatnonzero(draw(logits, SamplingParams(**params))).tolist())

    assert len(found) == len(kept)
    assert drawn == found
    assert {round(float(logits[t]), 1) for t in found} == {round(float(logits[t]), 1) for t in kept}


def test_rows_have_the_same_probabilities_alone_and_among_others():
    logits = 2 * torch.randn(len(SETTINGS), 3000, generator=torch.Generator().manual_seed(5))
    params = [SamplingParams(**values) for values in SETTINGS.values()]

    together = probabilities(logits, SamplingBatch.build(params, [0] * 8, [0] * 8, 3000)).numpy()

    for row, one in enumerate(params):
        np.testing.assert_allclose(together[row], computed(logits[row], one), rtol=1e-12)
