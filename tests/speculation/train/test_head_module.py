"""The head in training computes what the head of the engine computes, drafting token by token included."""

from __future__ import annotations

import pytest
import torch

from kernels.ops import AttentionMetadata, kv_cache_shapes, load_backend
from tests.speculation.tiny_head import random_head, runtime_head
from workbench.models.loader import load_model
from workbench.speculation.eagle import EagleHead
from workbench.speculation.paged_proposer import PagedProposer, spare_blocks
from workbench.speculation.paged_store import PagedStore
from workbench.speculation.proposer import DraftRequest
from workbench.speculation.train.examples import neighbours
from workbench.speculation.train.head_module import Piece, TrainingHead

NUM_STEPS = 4
BLOCK_SIZE = 8


@pytest.fixture(scope="module")
def target(tiny_model_path):
    return load_model(str(tiny_model_path), load_backend("cpu"), lambda _: None)


@pytest.fixture(scope="module")
def head(target):
    return random_head(target.model, num_tokens=50)


class Step:
    """What the engine would show of a context that it computed."""

    transfers = ()

    def __init__(self, metadata: AttentionMetadata, token_ids: torch.Tensor, hidden: torch.Tensor) -> None:
        self.metadata, self.token_ids, self.hidden = (metadata,), token_ids, hidden


class Watched(EagleHead):
    """Keeps its hidden states."""

    def __init__(self, *args):
        super().__init__(*args)
        self.seen: list[torch.Tensor] = []

    def forward(self, *args):
        hidden = super().forward(*args)
        self.seen.append(hidden[-1].clone())
        return hidden


def drafted_by_the_engine(target, head: TrainingHead, token_ids: list[int], features: torch.Tensor):
    """Tokens drafted behind a context, and the hidden state that each came from."""
    config, ops = target.config, target.model.ops
    running = Watched(runtime_head(head, target.model), head.shape, target.model.cos_sin, ops)
    blocks = kv_cache_shapes(1, BLOCK_SIZE, config.num_kv_heads, config.head_size)
    store = PagedStore(
        ops,
        EagleHead.store_shapes(config.hidden_size, tuple(block[1:] for block in blocks), BLOCK_SIZE),
        num_blocks=16,
        num_spare_blocks=spare_blocks(BLOCK_SIZE),
        num_swap_blocks=0,
        block_size=BLOCK_SIZE,
    )
    proposer = PagedProposer(running, store, config.vocab_size)
    count = len(token_ids) - 1
    table = tuple(range(3, 3 + -(-count // BLOCK_SIZE)))
    positions = torch.arange(count)
    slots = torch.tensor(table)[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    metadata = AttentionMetadata(
        torch.tensor([0, count], dtype=torch.int32),
        torch.tensor([count], dtype=torch.int32),
        torch.tensor([table], dtype=torch.int32),
        slots,
        positions,
    )
    proposer.follow(Step(metadata, torch.tensor(token_ids[:-1]), features[:count]))
    request = DraftRequest("a", token_ids, NUM_STEPS, (1, 3), (table,), uniforms=(0.0,) * NUM_STEPS)
    (draft,) = proposer.propose([request])
    return draft.token_ids, running.seen


def test_hidden_states_and_drafts_are_those_of_the_engine(target, head):
    """The engine drafts from one context; training computes all contexts of two texts at once."""
    generator = torch.Generator().manual_seed(1)
    lengths, firsts = (31, 14), (9, 0)
    texts = [torch.randint(0, 269, (length,), generator=generator) for length in lengths]
    states = [torch.randn(length, 64, generator=generator) for length in lengths]
    for text, state, end, piece in (
        (texts[0], states[0], 12, 0),
        (texts[0], states[0], 24, 0),
        (texts[1], states[1], 5, 1),
    ):
        tokens, seen = drafted_by_the_engine(target, head, text[:end].tolist(), state)
        text[end : end + NUM_STEPS] = torch.tensor(tokens)
        # Rows 0 … length - 2; the row that drafts from text[:end] is end - 2.
        pieces = [Piece(length - 1, first) for length, first in zip(lengths, firsts, strict=True)]
        token_ids = torch.cat([neighbours(each.tolist()) for each in texts])
        features = torch.cat([each[:-1] for each in states])
        start = sum(each.num_drafted for each in pieces[:piece])
        with torch.no_grad():
            for step, output in enumerate(head(token_ids, features, pieces, NUM_STEPS)):
                row = start + end - 2 - firsts[piece] + step
                (place,) = (output.rows == row).nonzero().flatten().tolist()
                assert (output.hidden[place] - seen[step]).abs().max() < 1e-4
                best = head.logits(output.hidden[place]).argmax()
                assert int(head.vocabulary[best]) == tokens[step]


def test_rows_of_a_step_are_those_with_enough_rows_before_them(head):
    pieces = [Piece(6, 3), Piece(3, 2), Piece(5, 0)]
    outputs = head(torch.zeros(14, 3, dtype=torch.int64), torch.zeros(14, 64), pieces, 4)
    assert [output.rows.tolist() for output in outputs] == [
        [0, 1, 2, 3, 4, 5, 6, 7, 8],
        [1, 2, 5, 6, 7, 8],
        [2, 6, 7, 8],
        [7, 8],
    ]


def test_head_from_the_target_begins_as_its_last_layer(target):
    """With nothing of the tokens, and the state without the final norm's weights as the stream."""
    head = TrainingHead.from_target(target.model, torch.arange(0, 269, 3))
    weights = target.model.weights
    layer = weights.layers[-1]
    assert torch.equal(head.qkv[:, :64], layer.qkv.dense())
    assert not head.qkv[:, 64:].any()
    assert not head.key_before.any()
    assert torch.equal(head.gate_up, layer.gate_up.dense())
    assert torch.allclose(30 * head.output, layer.output.dense())
    assert torch.allclose(30 * head.down, layer.down.dense())
    assert torch.equal(head.final_norm, weights.final_norm)
    assert torch.equal(head.head, weights.head.dense()[::3])
    state = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(head._enter(torch.arange(15).view(5, 3), state * weights.final_norm)[0], state, atol=1e-6)


def test_trained_are_the_heads_own_weights_only(head):
    names = {name for name, _ in head.named_parameters()}
    assert names == {
        *("token_norm", "fuse", "input_norm", "qkv", "key_before", "output"),
        *("post_attention_norm", "gate_up", "down", "final_norm"),
    }
    assert set(head.state_dict()) == names
