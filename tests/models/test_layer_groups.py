"""Layers by how far back they attend, and a model that takes a block table for each group of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.ops import AttentionMetadata, kv_cache_shapes, load_backend
from tests.models.tiny_directory import write_tiny_directory
from workbench.models.config import LayerGroup, ModelConfig
from workbench.models.loader import load_model


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
        ((None, 36, 8, 36), [(None, (0,)), (36, (1,)), (36, (3,)), (8, (2,))]),
    ],
)
def test_layer_groups_are_in_order_of_first_appearance_and_of_equal_size(windows, groups):
    expected = tuple(LayerGroup(window, layers) for window, layers in groups)
    assert config_with(*windows).layer_groups == expected


def step_metadata(table: list[int], start: int, end: int) -> AttentionMetadata:
    """One request that computes positions start … end - 1 in blocks of 16."""
    positions, blocks = torch.arange(start, end), torch.tensor(table, dtype=torch.int32)
    return AttentionMetadata(
        query_start=torch.tensor([0, end - start], dtype=torch.int32),
        seq_lens=torch.tensor([end], dtype=torch.int32),
        block_tables=blocks[None],
        slot_mapping=blocks[positions // 16].long() * 16 + positions % 16,
        positions=positions,
    )


@pytest.mark.usefixtures("compiled_kernels")
def test_model_follows_the_block_table_of_each_group_and_needs_no_blocks_behind_a_window(tmp_path):
    """Layers 1 and 3 see 20 tokens. Their group lies in other blocks, and at last without those behind the window."""
    layers: dict[str, Any] = {"num_hidden_layers": 4, "layer_types": ["full_attention", "sliding_attention"] * 2}
    write_tiny_directory(tmp_path / "tiny", "Qwen2", use_sliding_window=True, sliding_window=20, **layers)
    loaded = load_model(str(tmp_path / "tiny"), load_backend("cpu"), lambda _: None)
    tokens = torch.arange(101) % 250 + 3
    shapes = kv_cache_shapes(8, 16, loaded.config.num_kv_heads, loaded.config.head_size)

    def last_hidden(full: list[int], windowed: list[int], final: list[int]) -> torch.Tensor:
        """Prefill 100 tokens, take away all windowed blocks that are not in `final`, and decode one."""
        caches = [(torch.zeros(shapes[0]), torch.zeros(shapes[1])) for _ in range(4)]
        prefill = [step_metadata(full, 0, 100), step_metadata(windowed, 0, 100)]
        loaded.model.forward(tokens[:100], prefill, caches)
        for layer in (1, 3):
            for cache in caches[layer]:
                cache[[block for block in range(8) if block not in final]] = float("nan")
        decode = [step_metadata(full, 100, 101), step_metadata(final, 100, 101)]
        return loaded.model.forward(tokens[100:], decode, caches)

    assert [group.window for group in loaded.config.layer_groups] == [None, 20]
    plain = list(range(7))
    expected = last_hidden(plain, plain, plain)
    # Position 100 sees 81 … 100: the last two blocks.
    assert torch.equal(last_hidden(plain, [7, 6, 5, 4, 3, 2, 1], [0, 0, 0, 0, 0, 2, 1]), expected)
