"""Rotary scaling: literal values, both spellings of the configuration, and what is refused."""

from __future__ import annotations

import pytest
import torch

from workbench.errors import ModelLoadError
from workbench.models.rope import ROPE_TYPES, RopeScaling, read_rope, rotary_table, stretched_length

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def frequencies(rope_type, head_size=8, theta=10_000.0, position=0, **values):
    scaling = RopeScaling(rope_type=rope_type, **values)
    rows = ROPE_TYPES[rope_type](head_size, theta, torch.arange(position + 1), scaling)
    return rows[position] if rows.ndim == 2 else rows


def test_default_frequencies_fall_from_one_by_equal_ratios():
    torch.testing.assert_close(frequencies("default"), torch.tensor([1.0, 0.1, 0.01, 0.001]))


def test_linear_scaling_divides_all_frequencies():
    torch.testing.assert_close(frequencies("linear", factor=4.0), torch.tensor([0.25, 0.025, 0.0025, 0.00025]))


def test_llama3_scaling_keeps_high_frequencies_and_divides_low_ones():
    # Wavelengths 6.28, 62.8, 628, 6283 against bounds of 16 and 64: kept, blended, divided, divided.
    scaled = frequencies("llama3", factor=8.0, original_length=64, low_freq_factor=1.0, high_freq_factor=4.0)
    smooth = (64 * 0.1 / (2 * torch.pi) - 1) / 3
    blended = (1 - smooth) * 0.1 / 8 + smooth * 0.1
    torch.testing.assert_close(scaled, torch.tensor([1.0, blended, 0.01 / 8, 0.001 / 8]))


def test_yarn_scaling_keeps_fast_dimensions_and_divides_slow_ones():
    scaled = frequencies("yarn", factor=4.0, original_length=64, beta_fast=8.0, beta_slow=1.0)
    # Pair 0 turns 10 times within 64 positions, pair 1 once: the ramp goes from pair 0 to pair 2.
    torch.testing.assert_close(scaled, torch.tensor([1.0, (0.1 + 0.025) / 2, 0.0025, 0.00025]))


def test_dynamic_scaling_grows_theta_from_the_original_length_on():
    within = frequencies("dynamic", factor=2.0, original_length=16, position=15)
    beyond = frequencies("dynamic", factor=2.0, original_length=16, position=31)
    theta = 10_000.0 * (2.0 * 32 / 16 - 1) ** (8 / 6)
    torch.testing.assert_close(within, torch.tensor([1.0, 0.1, 0.01, 0.001]))
    torch.testing.assert_close(beyond, torch.tensor([theta ** (-i / 4) for i in range(4)]))


@pytest.mark.parametrize("rope_type", ROPE_TYPES)
def test_table_does_not_depend_on_how_long_it_is(rope_type):
    scaling = RopeScaling(rope_type=rope_type, factor=4.0, original_length=16, attention_factor=1.25)
    long, short = (rotary_table(8, 10_000.0, length, scaling) for length in (64, 24))
    assert long.shape == (64, 8)
    assert torch.equal(long[:24], short)
    assert long[0].tolist() == [1.25] * 4 + [0.0] * 4


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "llama3", **LLAMA3},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16},
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_both_spellings_of_a_configuration_mean_the_same(scaling):
    new = {"max_position_embeddings": 128, "rope_parameters": {**scaling, "rope_theta": 5000.0}}
    old = {"max_position_embeddings": 128, "rope_theta": 5000.0, "rope_scaling": scaling}
    unnamed = {key: value for key, value in scaling.items() if key != "rope_type"}
    oldest = {**old, "rope_scaling": {**unnamed, "type": scaling["rope_type"]}}
    theta, read = read_rope(new)
    assert theta == 5000.0
    assert read.rope_type == scaling["rope_type"]
    assert read_rope(old) == read_rope(oldest) == (theta, read)


def test_configuration_without_rope_parameters_means_the_defaults():
    assert read_rope({"rope_scaling": None}) == (10_000.0, RopeScaling())
    assert read_rope({"rope_theta": 1e6, "rope_parameters": {"rope_type": "default"}}) == (1e6, RopeScaling())


def test_yarn_takes_its_factor_and_attention_factor_from_the_lengths_when_they_are_not_given():
    values = {"rope_type": "yarn", "original_max_position_embeddings": 32}
    _, scaling = read_rope({"max_position_embeddings": 128, "rope_parameters": values})
    assert scaling.factor == 4.0
    assert scaling.attention_factor == pytest.approx(1.1386294)  # 0.1 ln 4 + 1


def test_length_of_the_original_context_beside_the_parameters_is_used():
    values = {"max_position_embeddings": 128, "original_max_position_embeddings": 16}
    _, scaling = read_rope({**values, "rope_scaling": {"type": "yarn", "factor": 8.0}})
    assert scaling.original_length == 16


@pytest.mark.parametrize(
    ("scaling", "stated", "longest"),
    [
        (RopeScaling(), 128, 128),
        (RopeScaling(rope_type="linear", factor=4.0, original_length=128), 128, 512),
        (RopeScaling(rope_type="dynamic", factor=2.5, original_length=128), 128, 320),
        (RopeScaling(rope_type="llama3", factor=8.0, original_length=16), 128, 128),
        (RopeScaling(rope_type="yarn", factor=4.0, original_length=128), 128, 512),
        (RopeScaling(rope_type="yarn", factor=4.0, original_length=128), 512, 512),
    ],
)
def test_scaling_stretches_the_longest_context(scaling, stated, longest):
    assert stretched_length(stated, scaling) == longest


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"rope_type": "longrope"},
            "'longrope' is not supported: supported are default, linear, dynamic, llama3, yarn",
        ),
        ({"rope_type": ["linear"]}, "is not supported: supported are default"),
        ({"rope_type": "linear"}, "lack 'factor'"),
        ({"rope_type": "linear", "factor": 0.5}, "factor 0.5 is less than 1"),
        ({"rope_type": "linear", "factor": "two"}, "factor = 'two' is not a number above 0"),
        ({"rope_type": "dynamic", "factor": float("nan")}, "factor = nan is not a number"),
        ({"rope_type": "llama3", **LLAMA3, "low_freq_factor": None}, "lack 'low_freq_factor'"),
        ({"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor 1.0 must be more than"),
        ({"rope_theta": -1.0}, "rope_theta = -1.0 is not a number above 1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not supported"),
        ({"full_attention": {"rope_type": "default"}}, "parameters by layer are unsupported"),
        ("linear", "are not one plain table"),
    ],
)
def test_bad_rope_parameters_are_refused_by_name(parameters, message):
    with pytest.raises(ModelLoadError) as caught:
        read_rope({"max_position_embeddings": 128, "rope_parameters": parameters})
    assert message in str(caught.value)
