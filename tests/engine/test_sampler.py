import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.engine.random_numbers import Purpose, uniform
from workbench.engine.sampler import SamplingBatch, sample
from workbench.sampling_params import SamplingParams


def draw(logits, params, seeds, positions):
    batch = SamplingBatch.build(params, seeds, positions, logits.shape[-1])
    return sample(logits, batch).tolist()


def plain_support(logits, params):
    """Token ids that may be sampled from one row, by the textbook definition."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    scaled = np.array([logits[i] / params.temperature for i in order], dtype=np.float64)
    if params.min_p > 0:
        scaled[scaled < scaled[0] + np.log(params.min_p)] = -np.inf
    if params.top_k > 0:
        scaled[scaled < scaled[min(params.top_k, len(order)) - 1]] = -np.inf
    probs = np.exp(scaled - scaled[0])
    probs /= probs.sum()
    kept, mass = [], 0.0
    for i, p in zip(order, probs, strict=True):
        if p == 0 or (mass >= params.top_p and params.top_p < 1):
            break
        kept.append(i)
        mass += p
    return set(kept), {i: p for i, p in zip(order, probs, strict=True) if i in kept}


def test_trap_26_temperature_zero_is_greedy_whatever_else_is_set():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    params = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, top_p=0.1),
        SamplingParams(temperature=0, top_k=3),
        SamplingParams(temperature=0, top_p=0.5, top_k=7, seed=3),
    ]

    assert draw(logits, params, [1, 2, 3, 4], [0, 1, 2, 3]) == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.5, top_k=3),
        SamplingParams(temperature=0.9, top_p=0.6),
        SamplingParams(temperature=1.2, top_k=5, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.3),
        SamplingParams(temperature=2.0, min_p=0.1, top_k=6, top_p=0.7),
        SamplingParams(temperature=1.0, min_p=1.0),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, top_p=1e-9),
    ],
)
def test_samples_follow_the_filtered_distribution(params):
    logits = torch.tensor([2.0, 1.5, 1.0, 0.0, -1.0, 1.9, 0.3, -4.0])
    count = 20_000
    tokens = draw(logits.repeat(count, 1), [params] * count, list(range(count)), [5] * count)
    support, probs = plain_support(logits.tolist(), params)

    assert set(tokens) <= support
    total = sum(probs.values())
    for token, p in probs.items():
        expected = p / total
        spread = 4.5 * (expected * (1 - expected) / count) ** 0.5
        assert abs(tokens.count(token) / count - expected) <= spread


def test_row_draws_the_same_token_alone_and_in_a_mixed_batch():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(8, 3000, generator=generator)
    params = [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.8, top_k=40),
        SamplingParams(temperature=2.0, top_p=0.99),
        SamplingParams(temperature=3.0, top_k=2000, top_p=0.999),
        SamplingParams(temperature=5.0, top_p=0.999),
        SamplingParams(temperature=9.0, min_p=0.001),
        SamplingParams(temperature=9.0, min_p=0.4, top_p=0.5),
    ]
    seeds, positions = [11, 12, 13, 14, 15, 16, 17, 18], [0, 3, 9, 1, 0, 77, 5, 6]
    together = draw(logits, params, seeds, positions)

    alone = [draw(logits[i : i + 1], [params[i]], [seeds[i]], [positions[i]])[0] for i in range(8)]
    backwards = draw(logits.flip(0), params[::-1], seeds[::-1], positions[::-1])[::-1]

    assert together == alone == backwards


def test_filter_that_keeps_more_than_the_candidates_falls_back_to_the_whole_vocabulary():
    logits = torch.zeros(1, 5000)
    seeds = range(400)
    params = SamplingParams(temperature=1.0, top_p=0.9)
    tokens = {draw(logits, [params], [seed], [0])[0] for seed in seeds}

    assert len(tokens) > 350  # 1,024 candidates of 5,000 equal ones would repeat far more often


def test_min_p_that_keeps_more_than_the_candidates_still_lets_top_p_cut_by_the_whole_mass():
    logits = torch.cat((torch.ones(1), torch.zeros(4999))).unsqueeze(0)
    params = SamplingParams(temperature=1.0, min_p=0.1, top_p=0.5)
    tokens = {draw(logits, [params], [seed], [0])[0] for seed in range(600)}

    assert len(tokens) > 450  # half of 5,000 near-equal tokens; half of the candidates would be 512


def test_equal_logits_at_the_top_k_boundary_are_all_kept():
    logits = torch.tensor([1.0, 0.5, 0.5, 0.5, -1.0]).repeat(500, 1)
    tokens = draw(logits, [SamplingParams(temperature=1.0, top_k=2)] * 500, list(range(500)), [0] * 500)

    assert set(tokens) == {0, 1, 2, 3}


def test_tiny_temperature_does_not_overflow():
    logits = torch.tensor([[50.0, 49.0, -300.0]])

    assert draw(logits, [SamplingParams(temperature=1e-300)], [1], [0]) == [0]


def test_same_seed_gives_other_tokens_at_other_positions():
    logits = torch.zeros(64, 1000)
    tokens = draw(logits, [SamplingParams(temperature=1.0)] * 64, [7] * 64, list(range(64)))

    assert len(set(tokens)) > 55


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31))
@settings(max_examples=200)
def test_uniform_is_a_function_of_its_key_and_lies_in_the_unit_interval(seed, position):
    one = uniform(np.array([seed], dtype=np.uint64), np.array([position]), Purpose.SAMPLE)
    many = uniform(np.array([1, seed, 3], dtype=np.uint64), np.array([0, position, 9]), Purpose.SAMPLE)

    assert 0 <= one[0] < 1
    assert one[0] == many[1]


def test_uniform_spreads_evenly_over_seeds_and_positions():
    keys = np.arange(40_000)
    for seeds, positions in ((keys.astype(np.uint64), keys * 0), ((keys * 0).astype(np.uint64), keys)):
        counts = np.bincount((uniform(seeds, positions, Purpose.SAMPLE) * 20).astype(int), minlength=20)
        chi_square = float(((counts - 2000) ** 2 / 2000).sum())
        assert chi_square < 60  # 19 degrees of freedom: exceeded by chance once in 200,000
