"""A head's file: what is written is what is read, and a file for anything else is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from kernels.ops import load_backend
from tests.models.tiny_gguf import write_tiny_gguf
from tests.speculation.tiny_head import random_head, write_random_head
from workbench.engine.eagle_proposer import head_target
from workbench.errors import ModelLoadError
from workbench.models.loader import load_model
from workbench.speculation import eagle_file
from workbench.speculation.eagle import wide_qkv
from workbench.speculation.eagle_file import head_path, read_facts, read_head, write_head


@pytest.fixture(scope="module")
def target(tiny_model_path):
    return load_model(str(tiny_model_path), load_backend("cpu"), lambda _: None)


@pytest.fixture
def path(tmp_path, target):
    write_random_head(tmp_path / "head.safetensors", target)
    return tmp_path / "head.safetensors"


def read(path, target, **changes):
    weights = target.model.weights
    return read_head(path, replace(head_target(target), **changes), weights.embedding, weights.head, target.model.ops)


def rewrite(path, metadata=None, **tensors):
    """Change some tensors of the file (None: leave it out) or lines of its metadata."""
    with safe_open(path, framework="pt") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - a handle is no mapping
        lines = file.metadata()
    held |= tensors
    save_file({name: one for name, one in held.items() if one is not None}, path, {**lines, **(metadata or {})})


def test_head_is_read_as_it_was_written_rounded_to_float16(path, target):
    head, read_weights = random_head(target.model, 50), read(path, target)
    qkv = wide_qkv(head.qkv.detach(), head.key_before.detach())
    assert torch.equal(read_weights.layer.qkv.dense(), qkv.half().float())
    for name in ("output", "gate_up", "down"):
        assert torch.equal(getattr(read_weights.layer, name).dense(), getattr(head, name).detach().half().float())
    assert torch.equal(read_weights.fuse.dense(), head.fuse.detach().half().float())
    for name in ("input_norm", "post_attention_norm"):
        assert torch.equal(getattr(read_weights.layer, name), getattr(head, name).detach().half().float())
    for name in ("token_norm", "final_norm"):
        assert torch.equal(getattr(read_weights, name), getattr(head, name).detach().half().float())
    assert torch.equal(read_weights.vocabulary, head.vocabulary)


def test_rows_of_the_head_are_the_targets_own_in_half_the_memory(path, target):
    weights = read(path, target)
    assert weights.embedding is target.model.weights.embedding
    assert torch.equal(weights.head.dense(), target.model.weights.head.dense()[weights.vocabulary].half().float())


def test_file_tells_its_target_and_how_it_was_trained(path, target):
    assert read_facts(path) == {"seed": 0}
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert (metadata["target"], metadata["target_sha256"]) == ("tiny", head_target(target).sha256)


def test_unfinished_file_leaves_the_old_one_alone(path, target, monkeypatch):
    before = path.read_bytes()

    def fail(tensors, unfinished, metadata):
        unfinished.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(eagle_file, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        write_random_head(path, target, seed=1)
    assert path.read_bytes() == before


def test_head_for_other_weights_is_refused_with_both_names(path, tmp_path):
    other = tmp_path / "other.gguf"
    write_tiny_gguf(other, seed=9)
    with pytest.raises(ModelLoadError, match=r"cannot use the head .* trained for tiny .* loaded model is other with"):
        read(path, load_model(str(other), load_backend("cpu"), lambda _: None))


def test_missing_file_is_refused(tmp_path, target):
    with pytest.raises(ModelLoadError, match="there is no head"):
        read(tmp_path / "none.safetensors", target)


@pytest.mark.parametrize("size", [0, 5, 300, -1])
def test_truncated_file_is_refused(path, target, size):
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelLoadError, match=r"cannot use the head head.safetensors: it is truncated or damaged"):
        read(path, target)


def test_file_that_is_no_head_is_refused(path, target):
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ModelLoadError, match="it does not say that its format is eagle-head-3"):
        read(path, target)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"fuse": None}, r"it lacks the tensors \['fuse'\]"),
        ({"vocabulary": None}, r"it lacks the tensors \['vocabulary'\]"),
        ({"bias": torch.zeros(1)}, r"has \['bias'\] instead"),
        ({"fuse": torch.zeros(64, 64, dtype=torch.float16)}, r"'fuse' is \(64, 64\), tiny needs \(64, 192\)"),
        ({"qkv": torch.zeros(64, 64, dtype=torch.float16)}, r"'qkv' is \(64, 64\), tiny needs \(128, 192\)"),
        (
            {"key_before": torch.zeros(64, 64, dtype=torch.float16)},
            r"'key_before' is \(64, 64\), tiny needs \(32, 64\)",
        ),
        ({"down": torch.zeros(64, 95, dtype=torch.float16)}, r"'gate_up' is \(192, 64\), tiny needs \(190, 64\)"),
        ({"down": torch.zeros(64, dtype=torch.float16)}, r"'down' is \(64,\)"),
        ({"token_norm": torch.ones(63, dtype=torch.float16)}, r"'token_norm' is \(63,\), tiny needs \(64,\)"),
        ({"final_norm": torch.ones(64)}, r"'final_norm' is torch.float32, not torch.float16"),
        ({"final_norm": torch.full((64,), torch.nan, dtype=torch.float16)}, "'final_norm' holds values that are not"),
        ({"vocabulary": torch.tensor([0, 269], dtype=torch.int32)}, "tokens that are not within 0 … 268"),
        ({"vocabulary": torch.tensor([-1, 2], dtype=torch.int32)}, "tokens that are not within 0 … 268"),
        ({"vocabulary": torch.tensor([2, 2], dtype=torch.int32)}, "names a token twice"),
        ({"vocabulary": torch.tensor([], dtype=torch.int32)}, "tokens that are not within"),
    ],
)
def test_head_of_other_tensors_is_refused(path, target, tensors, problem):
    rewrite(path, **tensors)
    with pytest.raises(ModelLoadError, match=problem):
        read(path, target)


def test_head_with_a_layer_of_another_kind_is_refused(path, target):
    layer = replace(head_target(target).layer, num_heads=8, num_kv_heads=4, head_size=8)
    with pytest.raises(ModelLoadError, match=r'its layer is \{"num_heads": 4'):
        read(path, target, layer=layer)


def test_writing_refuses_shapes_that_do_not_fit(tmp_path, target):
    head = random_head(target.model, 50)
    tensors = {**head.state_dict(), "vocabulary": head.vocabulary, "fuse": torch.zeros(64, 64)}
    with pytest.raises(ModelLoadError, match="'fuse' is"):
        write_head(tmp_path / "head.safetensors", tensors, head_target(target), {})
    assert list(tmp_path.iterdir()) == []


def test_shipped_heads_are_named_after_their_model():
    assert head_path("SmolLM2-135M-Instruct").name == "SmolLM2-135M-Instruct.safetensors"
    assert head_path("HuggingFaceTB/SmolLM2-135M").name == "HuggingFaceTB--SmolLM2-135M.safetensors"


def test_token_before_is_for_keys_alone():
    """Of two heads of queries and one of keys and values, two numbers each, over three states of two numbers."""
    qkv = torch.arange(1.0, 49.0).view(8, 6)
    wide = wide_qkv(qkv, torch.tensor([[100.0, 200.0], [300.0, 400.0]]))
    assert wide.shape == (8, 8)
    assert torch.equal(torch.cat([wide[:, :2], wide[:, 4:]], dim=1), qkv)
    assert wide[:, 2:4].tolist() == [[0, 0]] * 4 + [[100, 200], [300, 400]] + [[0, 0]] * 2
