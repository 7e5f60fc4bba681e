"""The default model's logits against transformers, from the same file."""

from __future__ import annotations

import pytest
import torch

from kernels.ops import AttentionMetadata, kv_cache_shapes, load_backend
from workbench.config import DEFAULT_MODEL
from workbench.models.loader import load_model

MESSAGES = [{"role": "user", "content": "Name three rivers in Europe, and the naïve café's 1969 menu."}]


@pytest.fixture(scope="module")
def loaded():
    return load_model(DEFAULT_MODEL, load_backend("cpu"), lambda _: None)


@pytest.mark.slow_reference
@pytest.mark.timeout(600)
def test_default_model_logits_equal_those_of_transformers(loaded, reference_model):
    config, model = loaded.config, loaded.model
    token_ids = torch.tensor(loaded.tokenizer.encode_chat(MESSAGES))
    length, num_blocks = len(token_ids), -(-len(token_ids) // 16)
    blocks = torch.arange(num_blocks - 1, -1, -1, dtype=torch.int32)
    positions = torch.arange(length)
    metadata = AttentionMetadata(
        query_start=torch.tensor([0, length], dtype=torch.int32),
        seq_lens=torch.tensor([length], dtype=torch.int32),
        block_tables=blocks[None],
        slot_mapping=blocks[positions // 16] * 16 + positions % 16,
        positions=positions,
    )
    keys, values = kv_cache_shapes(num_blocks, 16, config.num_kv_heads, config.head_size)
    caches = [(torch.zeros(keys), torch.zeros(values)) for _ in range(config.num_layers)]
    with torch.inference_mode():
        ours = model.compute_logits(model.forward(token_ids, [metadata], caches))
        theirs = reference_model.model(token_ids[None]).logits[0]
    assert ours.shape == (length, 49152)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
