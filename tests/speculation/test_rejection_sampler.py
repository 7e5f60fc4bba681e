"""What is accepted, and that the outcome is distributed as the model's own tokens: the point of it all."""

import math

import numpy as np
import pytest
import torch

from workbench.speculation.rejection_sampler import Verdict, accept_drawn, accept_matching, invert

NUM_DRAWS = 20_000


def test_sure_draft_is_accepted_as_far_as_it_is_what_the_model_chose():
    assert accept_matching((5, 6, 7), (5, 6, 7, 8)) == Verdict((5, 6, 7, 8))
    assert accept_matching((5, 6, 7), (5, 9, 7, 8)) == Verdict((5, 9))
    assert accept_matching((5, 6, 7), (1, 6, 7, 8)) == Verdict((1,))
    assert accept_matching((), (4,)) == Verdict((4,))
    assert accept_matching((5, 6, 7), (5, 9, 7, 8)).num_accepted == 1


def drawn(draft, q, p, accept, recover=(0.5, 0.5), bonus=0):
    return accept_drawn(draft, torch.tensor(q), torch.tensor(p, dtype=torch.float64), accept, recover, bonus)


def test_drawn_token_is_accepted_with_probability_p_over_q():
    q, p = [[0.5, 0.5, 0.0]], [[0.25, 0.25, 0.5], [0.0, 0.0, 1.0]]
    assert drawn([0], q, p, [0.49], bonus=2) == Verdict((0, 2))
    assert drawn([0], q, p, [0.51]) == Verdict((2,))


def test_drawn_token_that_the_model_likes_better_is_always_accepted():
    assert drawn([1], [[0.9, 0.1]], [[0.1, 0.9], [1.0, 0.0]], [0.999999]) == Verdict((1, 0))


def test_drawn_token_that_the_model_excludes_is_never_accepted():
    assert drawn([0], [[0.9, 0.1]], [[0.0, 1.0], [1.0, 0.0]], [0.0]) == Verdict((1,))


def test_recovered_token_comes_from_what_the_draft_left_of_the_model():
    q, p = [[0.6, 0.2, 0.2]], [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]
    outcomes = {u: drawn([0], q, p, [0.99], recover=(u,)).token_ids for u in (0.0, 0.24, 0.26, 0.99)}
    assert outcomes == {0.0: (1,), 0.24: (1,), 0.26: (2,), 0.99: (2,)}  # (p - q)+ is 0.1 and 0.3


def test_rows_need_not_be_normalized():
    assert drawn([0], [[5.0, 5.0]], [[1.0, 3.0], [1.0, 1.0]], [0.49], bonus=1) == Verdict((0, 1))
    assert drawn([0], [[5.0, 5.0]], [[1.0, 3.0], [1.0, 1.0]], [0.51]) == Verdict((1,))


def test_inversion_never_returns_a_token_of_weight_zero():
    weights = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    found = {invert(weights, u) for u in np.linspace(0, np.nextafter(1, 0), 1001)}
    assert found == {1, 3}
    assert invert(weights, float(np.nextafter(1, 0))) == 3


def g_statistic(counts, probabilities):
    """The G statistic of counts, and its degrees of freedom. Tokens of probability 0 must not occur."""
    total = sum(counts)
    assert all(count == 0 for count, p in zip(counts, probabilities, strict=True) if p == 0)
    pairs = [(count, p) for count, p in zip(counts, probabilities, strict=True) if p > 0]
    return 2 * sum(count * math.log(count / (total * p)) for count, p in pairs if count), len(pairs) - 1


def limit(degrees):
    """The value that the statistic exceeds once in a million runs (Wilson and Hilferty's approximation)."""
    return degrees * (1 - 2 / (9 * degrees) + 4.7534 * math.sqrt(2 / (9 * degrees))) ** 3


def counts_of_first_tokens(p, q, accept=accept_drawn):
    rng = np.random.default_rng(1)
    drafts = rng.choice(len(q), size=NUM_DRAWS, p=q)
    uniforms = rng.random((NUM_DRAWS, 2))
    target, draft = torch.tensor([p, p], dtype=torch.float64), torch.tensor([q])
    counts = [0] * len(p)
    for token_id, (accept_u, recover_u) in zip(drafts.tolist(), uniforms.tolist(), strict=True):
        counts[accept([token_id], draft, target, [accept_u], [recover_u], 0).token_ids[0]] += 1
    return counts


P = [0.35, 0.05, 0.0, 0.2, 0.25, 0.15]
DRAFTS = {
    "close": [0.3, 0.1, 0.05, 0.2, 0.2, 0.15],
    "far": [0.05, 0.5, 0.2, 0.05, 0.15, 0.05],
    "the same": P,
    "narrow": [0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
}


@pytest.mark.parametrize("name", DRAFTS)
def test_outcome_is_distributed_as_the_model_whatever_drafts(name):
    statistic, degrees = g_statistic(counts_of_first_tokens(P, DRAFTS[name]), P)
    assert statistic < limit(degrees)


def accept_if_likely(draft_token_ids, draft_probabilities, target_probabilities, accept, recover, bonus):
    """Broken on purpose: what is recovered comes from p and not from what the draft left of it."""
    p, q = target_probabilities[0], draft_probabilities[0].double()
    token_id = draft_token_ids[0]
    return Verdict((token_id, bonus) if accept[0] * q[token_id] < p[token_id] else (invert(p.numpy(), recover[0]),))


@pytest.mark.parametrize("name", ["close", "far", "narrow"])
def test_test_tells_a_broken_sampler_apart(name):
    counts = counts_of_first_tokens(P, DRAFTS[name], accept_if_likely)
    statistic, degrees = g_statistic(counts, P)
    assert statistic > limit(degrees)
