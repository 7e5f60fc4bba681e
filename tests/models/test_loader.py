"""Loading GGUF files: right weights from good files, one clear error for every bad one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kernels.ops import AttentionMetadata, kv_cache_shapes, load_backend
from tests.models.tiny_gguf import write_tiny_gguf
from workbench.errors import ModelLoadError
from workbench.models.loader import LoadProgress, load_model
from workbench.models.rope import RopeScaling


def load(path, progress=lambda _: None):
    return load_model(str(path), load_backend("reference"), progress)


def test_load_reads_shape_and_names_from_the_file(tmp_path):
    path = tmp_path / "tiny.Q4_K_M.gguf"
    write_tiny_gguf(path)
    loaded = load(path)
    config = loaded.config
    assert (config.name, config.architecture, config.vocab_size) == ("tiny", "llama", 269)
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (64, 96, 2)
    assert (config.num_heads, config.num_kv_heads, config.head_size) == (4, 2, 16)
    assert (config.max_position_embeddings, config.rope_theta) == (512, 10000.0)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert config.tie_word_embeddings
    assert config.bos_token_id == 1
    assert config.eos_token_ids == {0, 2}
    assert loaded.source_format == "GGUF F32"
    assert loaded.path == path
    assert loaded.file_bytes == path.stat().st_size


def test_load_fuses_projections_and_undoes_the_row_order_of_llama_cpp(tmp_path):
    path = tmp_path / "tiny.gguf"
    stored = write_tiny_gguf(path)
    weights = load(path).model.weights
    layer = weights.layers[1]
    qkv, gate_up = layer.qkv.dense(), layer.gate_up.dense()
    assert qkv.shape == (128, 64)
    assert gate_up.shape == (192, 64)
    # Stored rows of a head are pairs 0, D/2, 1, D/2 + 1, …; Hugging Face wants 0, 1, …, D/2, D/2 + 1, …
    order = [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15]
    query, key = stored["blk.1.attn_q.weight"], stored["blk.1.attn_k.weight"]
    for head in range(4):
        assert np.array_equal(qkv[head * 16 : head * 16 + 16].numpy(), query[head * 16 : head * 16 + 16][order])
    for head in range(2):
        rows = qkv[64 + head * 16 : 64 + head * 16 + 16].numpy()
        assert np.array_equal(rows, key[head * 16 : head * 16 + 16][order])
    assert np.array_equal(qkv[96:].numpy(), stored["blk.1.attn_v.weight"])
    assert np.array_equal(gate_up[:96].numpy(), stored["blk.1.ffn_gate.weight"])
    assert np.array_equal(gate_up[96:].numpy(), stored["blk.1.ffn_up.weight"])


def test_load_shares_the_embedding_with_the_head_when_the_file_has_none(tmp_path):
    write_tiny_gguf(tmp_path / "tied.gguf")
    write_tiny_gguf(tmp_path / "own.gguf", tie_word_embeddings=False)
    tied, own = load(tmp_path / "tied.gguf"), load(tmp_path / "own.gguf")
    assert tied.model.weights.head is tied.model.weights.embedding
    assert own.model.weights.head is not own.model.weights.embedding
    assert own.weight_bytes - tied.weight_bytes == 269 * 64 * 4


def test_load_reports_progress_in_bytes_up_to_the_total(tmp_path):
    path = tmp_path / "tiny.gguf"
    tensors = write_tiny_gguf(path)
    seen: list[LoadProgress] = []
    load(path, seen.append)
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert seen[0] == LoadProgress("reading metadata", 0, 0)
    done = [p.done_bytes for p in seen[1:]]
    assert done == sorted(done)
    assert seen[-1] == LoadProgress("loading weights", total, total)


def test_load_refuses_a_missing_file(tmp_path):
    with pytest.raises(ModelLoadError, match=r"no model file .*absent\.gguf: give the path of a \.gguf file"):
        load(tmp_path / "absent.gguf")


def test_load_refuses_a_directory_without_a_configuration(tmp_path):
    with pytest.raises(ModelLoadError, match=r"is a directory without config\.json: give the path of a \.gguf file"):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a zip archive, not a model"])
def test_load_refuses_a_file_of_another_kind(tmp_path, content):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"other\.gguf \(\d+ bytes\): it starts with b'.*', not b'GGUF'"):
        load(path)


@pytest.mark.parametrize("kept", [6, 20, 300, 5000, -1000])
def test_load_refuses_a_truncated_file(tmp_path, kept):
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        ModelLoadError, match=r"cannot load tiny\.gguf \(\d+ bytes\): it is truncated or corrupt .*again"
    ):
        load(path)


def test_load_refuses_a_file_whose_metadata_is_overwritten(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    content = bytearray(path.read_bytes())
    content[24:120] = b"\xff" * 96
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match="truncated or corrupt"):
        load(path)


def test_load_refuses_weights_that_are_not_finite(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, extra_tensors={"output_norm.weight": np.full(64, np.nan, np.float32)})
    with pytest.raises(ModelLoadError, match=r"'output_norm\.weight' holds values that are not finite"):
        load(path)


def test_load_refuses_an_unknown_architecture(tmp_path):
    write_tiny_gguf(tmp_path / "tiny.gguf", architecture="mamba")
    with pytest.raises(ModelLoadError, match="architecture 'mamba' is not supported: supported: llama"):
        load(tmp_path / "tiny.gguf")


def test_load_refuses_a_file_without_a_tensor_it_needs(tmp_path):
    write_tiny_gguf(tmp_path / "tiny.gguf", skip_tensors=("blk.1.ffn_up.weight",))
    with pytest.raises(ModelLoadError, match=r"it has no tensor 'blk\.1\.ffn_up\.weight'"):
        load(tmp_path / "tiny.gguf")


def test_load_refuses_a_file_without_a_field_it_needs(tmp_path):
    write_tiny_gguf(tmp_path / "tiny.gguf", skip_fields=("feed_forward_length",))
    with pytest.raises(ModelLoadError, match=r"its metadata lacks 'llama\.feed_forward_length'"):
        load(tmp_path / "tiny.gguf")


def test_load_refuses_a_tensor_of_the_wrong_shape(tmp_path):
    wrong = {"blk.0.ffn_up.weight": np.zeros((95, 64), np.float32)}
    write_tiny_gguf(tmp_path / "tiny.gguf", extra_tensors=wrong)
    with pytest.raises(ModelLoadError, match=r"'blk\.0\.ffn_up\.weight' is \(95, 64\), expected \(96, 64\)"):
        load(tmp_path / "tiny.gguf")


def test_load_refuses_tensors_that_it_would_have_to_ignore(tmp_path):
    extra = {"blk.0.attn_q.bias": np.zeros(64, np.float32)}
    write_tiny_gguf(tmp_path / "tiny.gguf", extra_tensors=extra)
    with pytest.raises(
        ModelLoadError, match=r"1 tensors that a Llama decoder does not have, first 'blk\.0\.attn_q\.bias'"
    ):
        load(tmp_path / "tiny.gguf")


@pytest.mark.parametrize(
    ("scaling", "read", "longest"),
    [
        ({"type": "none"}, RopeScaling(), 512),
        ({"type": "linear", "factor": 4.0}, RopeScaling(rope_type="linear", factor=4.0, original_length=512), 2048),
        (
            {"type": "yarn", "factor": 2.0, "original_context_length": 256, "yarn_beta_fast": 16.0},
            RopeScaling(
                rope_type="yarn",
                factor=2.0,
                original_length=256,
                beta_fast=16.0,
                attention_factor=0.1 * math.log(2) + 1,
            ),
            512,
        ),
    ],
    ids=lambda value: value.get("type") if isinstance(value, dict) else None,
)
def test_load_reads_rotary_scaling(tmp_path, scaling, read, longest):
    write_tiny_gguf(tmp_path / "tiny.gguf", rope_scaling=scaling)
    config = load(tmp_path / "tiny.gguf").config
    assert config.rope_scaling == read
    assert config.rope_theta == 10_000.0
    assert config.max_position_embeddings == longest


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "longrope", "factor": 4.0}, "rotary scaling: rope_type 'longrope' is not supported: supported are "),
        ({"type": "linear"}, "rotary scaling: its rope parameters lack 'factor'"),
        ({"type": "yarn", "factor": 2.0, "attn_factor": 2.0}, "its rotary scaling has 'attn_factor', which is not"),
    ],
)
def test_load_refuses_rotary_scaling_that_it_does_not_know(tmp_path, scaling, message):
    write_tiny_gguf(tmp_path / "tiny.gguf", rope_scaling=scaling)
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path / "tiny.gguf")


def test_load_names_an_unknown_pre_tokenizer(tmp_path):
    write_tiny_gguf(tmp_path / "tiny.gguf", pre_tokenizer="tekken")
    with pytest.raises(
        ModelLoadError, match=r"tiny\.gguf: pre-tokenizer 'tekken' is not known: known are gpt-2, llama-bpe"
    ):
        load(tmp_path / "tiny.gguf")


def test_load_refuses_a_broken_chat_template(tmp_path):
    write_tiny_gguf(tmp_path / "tiny.gguf", chat_template="{% for message in %}")
    with pytest.raises(ModelLoadError, match="chat template is not valid"):
        load(tmp_path / "tiny.gguf")


def test_forward_of_a_tiny_model_does_not_depend_on_the_backend(tmp_path):
    write_tiny_gguf(tmp_path / "tiny.gguf")
    tokens = torch.tensor([5, 77, 130, 200, 9, 9, 31])
    positions = torch.arange(7)
    metadata = AttentionMetadata(
        query_start=torch.tensor([0, 7], dtype=torch.int32),
        seq_lens=torch.tensor([7], dtype=torch.int32),
        block_tables=torch.tensor([[1]], dtype=torch.int32),
        slot_mapping=positions + 8,
        positions=positions,
    )
    logits = []
    for backend in ("reference", "cpu"):
        model = load_model(str(tmp_path / "tiny.gguf"), load_backend(backend), lambda _: None).model
        keys, values = kv_cache_shapes(2, 8, 2, 16)
        caches = [(torch.zeros(keys), torch.zeros(values)) for _ in range(2)]
        logits.append(model.compute_logits(model.forward(tokens, [metadata], caches)))
    assert logits[0].shape == (7, 269)
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)
