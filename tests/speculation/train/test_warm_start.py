"""The linear map that a head begins with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.ops import load_backend
from tests.speculation.tiny_head import random_head
from workbench.models.loader import load_model
from workbench.speculation.train import warm_start
from workbench.speculation.train.examples import Batch
from workbench.speculation.train.head_module import Piece
from workbench.speculation.train.warm_start import fit_fuse


@pytest.fixture
def head(tiny_model_path):
    return random_head(load_model(str(tiny_model_path), load_backend("cpu"), lambda _: None).model, num_tokens=50)


def batch_for(head, wanted):
    """Drafted are rows 100 … 399; their next state is the map `wanted` of their inputs, behind the final norm."""
    generator = torch.Generator().manual_seed(2)
    token_ids = torch.randint(0, 269, (400, 3), generator=generator)
    features = torch.randn(400, 64, generator=generator)
    with torch.no_grad():
        hidden = head.inputs(token_ids[100:], features[100:]) @ wanted.T * head.final_norm
    nothing = torch.zeros(300)
    return Batch(token_ids, features, (Piece(400, 100),), hidden, nothing, nothing, nothing, (True,))


def test_map_is_found_again_from_the_drafted_rows_of_all_batches(head, monkeypatch):
    monkeypatch.setattr(warm_start, "RIDGE", 1e-9)
    wanted = torch.randn(64, 192, generator=torch.Generator().manual_seed(1))
    batch = batch_for(head, wanted)
    half = replace(batch, token_ids=batch.token_ids[:250], features=batch.features[:250], pieces=(Piece(250, 100),))
    half = replace(half, hidden=batch.hidden[:150])
    rest = replace(batch, token_ids=batch.token_ids[250:], features=batch.features[250:], pieces=(Piece(150, 0),))
    rest = replace(rest, hidden=batch.hidden[150:])
    fit_fuse(head, [half, rest])
    assert (head.fuse - wanted).abs().max() < 1e-2
    assert head.fuse.requires_grad


def test_penalty_makes_the_map_smaller(head, monkeypatch):
    wanted = torch.randn(64, 192, generator=torch.Generator().manual_seed(1))
    sizes = []
    for ridge in (1e-9, 0.3, 30.0):
        monkeypatch.setattr(warm_start, "RIDGE", ridge)
        fit_fuse(head, [batch_for(head, wanted)])
        sizes.append(float(head.fuse.detach().norm()))
    assert sizes[0] > 1.02 * sizes[1] > 1.1 * sizes[2]
