"""Layers by how far back they attend."""

from __future__ import annotations

import pytest

from workbench.models.config import LayerGroup, ModelConfig


def config_with(*windows: int | None, num_layers: int = 4) -> ModelConfig:
    return ModelConfig(
        name="tiny",
        architecture="MistralForCausalLM",
        vocab_size=280,
        hidden_size=64,
        intermediate_size=96,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=2,
        head_size=16,
        max_position_embeddings=128,
        rms_norm_eps=1e-6,
        rope_theta=10_000.0,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_ids=frozenset({2}),
        sliding_windows=windows,
    )


@pytest.mark.parametrize(
    ("windows", "groups"),
    [
        ((), [(None, (0, 1, 2, 3))]),
        ((None, None, None, None), [(None, (0, 1, 2, 3))]),
        ((36, 36, 36, 36), [(36, (0, 1, 2, 3))]),
        ((36, None, 36, None), [(36, (0, 2)), (None, (1, 3))]),
        ((None, 36, 8, 36), [(None, (0,)), (36, (1, 3)), (8, (2,))]),
    ],
)
def test_layer_groups_are_in_order_of_first_appearance(windows, groups):
    expected = tuple(LayerGroup(window, layers) for window, layers in groups)
    assert config_with(*windows).layer_groups == expected
