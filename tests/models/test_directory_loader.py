"""Loading directories: right weights from good ones, one clear error for every bad one, and an engine that survives."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.ops import load_backend
from tests.models.tiny_directory import write_tiny_directory
from workbench.config import EngineConfig
from workbench.engine import loading
from workbench.engine.messages import RequestFinished, ServiceState
from workbench.engine.service import EngineService
from workbench.errors import ModelLoadError
from workbench.models.config import ModelConfig
from workbench.models.directory_config import read_directory_config
from workbench.models.loader import LoadProgress, load_model
from workbench.sampling_params import SamplingParams

DEADLINE_S = 60


def load(path, progress=lambda _: None):
    return load_model(str(path), load_backend("reference"), progress)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good directories, never changed: `single`, `sharded`, `biased`."""
    root = tmp_path_factory.mktemp("originals")
    write_tiny_directory(root / "single", dtype=torch.bfloat16)
    write_tiny_directory(root / "sharded", max_shard_size="50KB")
    write_tiny_directory(root / "biased", attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    return root


@pytest.fixture
def directory(originals: Path, tmp_path: Path) -> Path:
    """A copy of `single` that a test may spoil."""
    return shutil.copytree(originals / "single", tmp_path / "tiny")


@pytest.fixture
def sharded(originals: Path, tmp_path: Path) -> Path:
    return shutil.copytree(originals / "sharded", tmp_path / "tiny")


def change_json(path: Path, **values: Any) -> None:
    """Set keys of a JSON file; None in place of a value removes the key."""
    content = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def change_tensors(directory: Path, **tensors: torch.Tensor | None) -> None:
    """Replace tensors of `model.safetensors`; None removes one. `__` in a name stands for a dot."""
    file = directory / "model.safetensors"
    content: dict[str, torch.Tensor | None] = {name: tensor.clone() for name, tensor in load_file(file).items()}
    content |= {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({name: tensor for name, tensor in content.items() if tensor is not None}, file)


# ----------------------------------------------------------------------------- good directories


def test_load_reads_shape_and_names(originals):
    loaded = load(originals / "single")
    config = loaded.config
    assert (config.name, config.architecture, config.vocab_size) == ("single", "LlamaForCausalLM", 280)
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (64, 96, 2)
    assert (config.num_heads, config.num_kv_heads, config.head_size) == (4, 2, 16)
    assert (config.max_position_embeddings, config.rope_theta, config.rms_norm_eps) == (128, 10_000.0, 1e-6)
    assert not (config.tie_word_embeddings or config.qkv_bias or config.output_bias or config.mlp_bias)
    assert (config.bos_token_id, config.eos_token_ids) == (1, {2})
    assert (loaded.source_format, loaded.notices) == ("safetensors BF16", ())
    assert loaded.path == originals / "single"
    assert loaded.file_bytes == (originals / "single" / "model.safetensors").stat().st_size


def test_load_fuses_projections_and_converts_to_float32(originals):
    stored = load_file(originals / "single" / "model.safetensors")
    layer = load(originals / "single").model.weights.layers[1]
    prefix = "model.layers.1."
    names = {part: f"{prefix}self_attn.{part}_proj.weight" for part in "qkv"}
    assert layer.qkv.dense().dtype == torch.float32
    assert torch.equal(layer.qkv.dense(), torch.cat([stored[names[part]] for part in "qkv"]).float())
    gate_up = torch.cat([stored[f"{prefix}mlp.gate_proj.weight"], stored[f"{prefix}mlp.up_proj.weight"]])
    assert torch.equal(layer.gate_up.dense(), gate_up.float())
    assert (layer.qkv_bias, layer.output_bias, layer.gate_up_bias, layer.down_bias) == (None, None, None, None)


def test_load_reads_biases_and_counts_a_tied_head_once(originals):
    stored = load_file(originals / "biased" / "model.safetensors")
    loaded = load(originals / "biased")
    weights, prefix = loaded.model.weights, "model.layers.0."
    layer = weights.layers[0]
    assert torch.equal(layer.qkv_bias, torch.cat([stored[f"{prefix}self_attn.{part}_proj.bias"] for part in "qkv"]))
    assert torch.equal(layer.output_bias, stored[f"{prefix}self_attn.o_proj.bias"])
    assert torch.equal(layer.down_bias, stored[f"{prefix}mlp.down_proj.bias"])
    assert layer.gate_up_bias.shape == (192,)
    assert weights.head is weights.embedding
    assert loaded.weight_bytes == sum(tensor.numel() for tensor in stored.values()) * 4


def test_load_ties_a_head_that_the_file_holds_twice(directory):
    embedding = load_file(directory / "model.safetensors")["model.embed_tokens.weight"]
    change_json(directory / "config.json", tie_word_embeddings=True)
    change_tensors(directory, lm_head__weight=embedding.clone())
    weights = load(directory).model.weights
    assert weights.head is weights.embedding


def test_load_keeps_a_head_of_its_own_when_it_differs_from_the_embedding(directory):
    change_json(directory / "config.json", tie_word_embeddings=True)
    weights = load(directory).model.weights
    assert weights.head is not weights.embedding
    assert torch.equal(weights.head.dense(), load_file(directory / "model.safetensors")["lm_head.weight"].float())


def test_load_reports_progress_in_bytes_up_to_the_total(originals):
    seen: list[LoadProgress] = []
    load(originals / "sharded", seen.append)
    total = sum(
        tensor.nbytes for file in (originals / "sharded").glob("*.safetensors") for tensor in load_file(file).values()
    )
    assert [p.phase for p in seen[:2]] == ["reading metadata", "reading the tokenizer"]
    assert seen[-1] == LoadProgress("loading weights", total, total)


def test_load_takes_head_size_and_key_value_heads_from_the_others_when_absent(directory):
    change_json(directory / "config.json", head_dim=None, rope_parameters=None)
    assert load(directory).config.head_size == 16


def test_trap_21_end_tokens_of_all_three_files_are_united(directory):
    change_json(directory / "config.json", eos_token_id=7)
    change_json(directory / "generation_config.json", eos_token_id=[5, 6])
    assert load(directory).config.eos_token_ids == {2, 5, 6, 7}


def test_load_ignores_rotary_frequencies_that_old_checkpoints_hold(directory):
    change_tensors(directory, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8))
    assert load(directory).config.num_layers == 2


@pytest.mark.parametrize(
    ("values", "windows"),
    [
        ({"sliding_window": 48}, (48, 48)),
        ({"sliding_window": 127}, (127, 127)),
        ({"sliding_window": 128}, ()),  # no context is longer
        ({"sliding_window": None}, ()),
        ({}, ()),  # 4,096 by default
        ({"max_position_embeddings": 8192}, (4096, 4096)),
    ],
)
def test_trap_30_mistral_window_is_active_and_does_not_cap_the_context(originals, tmp_path, values, windows):
    config = read_as("MistralForCausalLM", originals, tmp_path, values)
    assert config.sliding_windows == windows
    assert config.max_position_embeddings == values.get("max_position_embeddings", 128)


@pytest.mark.parametrize(
    ("values", "windows"),
    [
        ({"use_sliding_window": False, "sliding_window": 48}, ()),
        ({"use_sliding_window": True, "sliding_window": 48, "max_window_layers": 2}, ()),
        ({"use_sliding_window": True, "sliding_window": 48, "max_window_layers": 1}, (None, 48)),
        ({"use_sliding_window": True, "sliding_window": 48, "max_window_layers": 0}, (48, 48)),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, ()),
        ({"use_sliding_window": True, "sliding_window": 48, "layer_types": ["full_attention"] * 2}, ()),
        (
            {"use_sliding_window": True, "sliding_window": 48, "layer_types": ["sliding_attention", "full_attention"]},
            (48, None),
        ),
    ],
)
def test_qwen2_window_counts_only_in_the_layers_that_use_it(originals, tmp_path, values, windows):
    config = read_as("Qwen2ForCausalLM", originals, tmp_path, values)
    assert config.sliding_windows == windows
    assert config.max_position_embeddings == 128


def test_llama_has_no_window_whatever_its_file_says(originals, tmp_path):
    assert read_as("LlamaForCausalLM", originals, tmp_path, {"sliding_window": 48}).sliding_windows == ()


def read_as(architecture: str, originals: Path, folder: Path, values: dict[str, Any]) -> ModelConfig:
    """Read the configuration of `single` as that of another architecture, with some values set or null."""
    content = json.loads((originals / "single" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "architectures": [architecture], **values}))
    return read_directory_config(folder, "tiny")


# ------------------------------------------------------------------------------ bad directories


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"cannot load tiny: config\.json is not valid JSON \(.*\): fetch it again"),
        ("\xff\xfe", r"config\.json is not valid JSON"),
        ("[1]", r"config\.json holds list, not an object"),
    ],
)
def test_load_refuses_an_unreadable_configuration(directory, content, message):
    (directory / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelLoadError, match=message):
        load(directory)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture 'GPT2LMHeadModel' is not supported (supported: Llama"),
        ({"architectures": None}, "architecture 'none named' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported (only 'silu' is)"),
        ({"quantization_config": {"quant_method": "gptq"}}, "its weights are quantized (gptq)"),
        (
            {"rope_parameters": {"rope_type": "longrope"}},
            "rope_type 'longrope' is not supported: supported are default",
        ),
        ({"hidden_size": None}, "it lacks 'hidden_size'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0 is not a whole number of at least 1"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers = '2' is not a whole number"),
        ({"num_key_value_heads": 3}, "4 heads, 3 key/value heads of 16 do not fit"),
        ({"head_dim": 15}, "4 heads, 2 key/value heads of 15 do not fit"),
        ({"rms_norm_eps": -1}, "rms_norm_eps = -1 is not a number between 0 and 1"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes' is neither true nor false"),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 0},
            "sliding_window = 0 is not a whole number of at least 1",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "layer_types": ["full_attention"]},
            "layer_types = ['full_attention'] does not name 2 layers, each one of full_attention, sliding_attention",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "layer_types": ["full_attention", ""]},
            "layer_types = ['full_attention', ''] does not name 2 layers",
        ),
        ({"eos_token_id": [2, 280]}, "eos_token_id = 280 is outside the vocabulary of 280 tokens"),
    ],
)
def test_load_refuses_a_configuration_by_name_of_what_is_wrong(directory, values, message):
    change_json(directory / "config.json", **values)
    with pytest.raises(ModelLoadError) as caught:
        load(directory)
    assert str(caught.value).startswith("cannot load tiny: config.json: ")
    assert message in str(caught.value)
    assert str(caught.value).endswith(": give another model, or correct the file")


@pytest.mark.parametrize("kept", [0, 4, 60, -10])
def test_load_refuses_a_truncated_file(directory, kept):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(
        ModelLoadError,
        match=r"cannot load tiny: model\.safetensors \(\d+ bytes\) is truncated or corrupt .*fetch it again",
    ):
        load(directory)


def test_load_refuses_a_file_whose_header_is_overwritten(directory):
    content = bytearray((directory / "model.safetensors").read_bytes())
    content[8:100] = b"\xff" * 92
    (directory / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelLoadError, match="truncated or corrupt"):
        load(directory)


def test_load_refuses_a_directory_when_a_shard_is_missing(sharded):
    missing = sorted(sharded.glob("model-*.safetensors"))[1]
    missing.unlink()
    with pytest.raises(ModelLoadError, match=rf"the shard {missing.name} with \d+ of its tensors is missing"):
        load(sharded)


def test_load_refuses_a_shard_that_lacks_what_the_index_promises(sharded):
    first, second = sorted(sharded.glob("model-*.safetensors"))[:2]
    shutil.copy(second, first)
    with pytest.raises(ModelLoadError, match=rf"{first.name} lacks tensor '.*', which model\.safetensors\.index\.json"):
        load(sharded)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {}}, "has no weight_map of tensors to files"),
        ({"metadata": {}}, "has no weight_map"),
        ({"weight_map": {"lm_head.weight": "../elsewhere.safetensors"}}, "which is not a file beside it"),
        ({"weight_map": {"lm_head.weight": 3}}, "has no weight_map"),
    ],
)
def test_load_refuses_a_broken_index(sharded, index, message):
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=message):
        load(sharded)


def test_load_refuses_weights_in_another_format(directory):
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(
        ModelLoadError, match=r"it has neither .*, only pytorch_model\.bin, a pickle, which is not read"
    ):
        load(directory)


def test_load_refuses_a_file_without_a_tensor_it_needs(directory):
    change_tensors(directory, model__layers__1__mlp__up_proj__weight=None)
    with pytest.raises(ModelLoadError, match=r"its files have no tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        load(directory)


def test_load_refuses_tensors_that_it_would_have_to_ignore(directory):
    change_tensors(directory, model__layers__0__self_attn__q_norm__weight=torch.ones(16))
    with pytest.raises(ModelLoadError, match=r"1 tensors that a Llama decoder does not have, first '.*q_norm\.weight'"):
        load(directory)


def test_load_refuses_a_tensor_of_the_wrong_shape(directory):
    change_tensors(directory, lm_head__weight=torch.ones(269, 64))
    with pytest.raises(
        ModelLoadError,
        match=r"'lm_head\.weight' in model\.safetensors is \(269, 64\), config\.json means \(280, 64\): fetch",
    ):
        load(directory)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_load_refuses_weights_that_are_not_finite(directory, value):
    norm = torch.ones(64)
    norm[63] = value
    change_tensors(directory, model__norm__weight=norm)
    with pytest.raises(ModelLoadError, match=r"'model\.norm\.weight' in model\.safetensors holds values that are not "):
        load(directory)


def test_load_refuses_weights_of_another_storage_type(directory):
    change_tensors(directory, model__norm__weight=torch.ones(64, dtype=torch.int8))
    with pytest.raises(ModelLoadError, match=r"'model\.norm\.weight' in model\.safetensors is stored as I8: give a"):
        load(directory)


# ------------------------------------------------------------------------------------- the hub


def test_hub_id_is_fetched_and_keeps_its_name(originals, monkeypatch):
    import huggingface_hub

    asked = []

    def snapshot_download(hub_id, allow_patterns):
        asked.append((hub_id, "*.safetensors" in allow_patterns, "*.bin" in allow_patterns))
        return str(originals / "single")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert load("someone/tiny-model").config.name == "someone/tiny-model"
    assert asked == [("someone/tiny-model", True, False)]


def test_hub_id_without_a_network_is_one_error_that_says_what_to_do(monkeypatch):
    import huggingface_hub

    def snapshot_download(*_, **__):
        raise ConnectionError("Name or service not known\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ModelLoadError) as caught:
        load("someone/tiny-model")
    message = str(caught.value)
    assert "there is no directory someone/tiny-model" in message
    assert "(ConnectionError: Name or service not known): check the name and the network" in message
    assert "hf download someone/tiny-model --local-dir DIRECTORY" in message


# ------------------------------------------------------------------------------ a running engine


def answer(service: EngineService, prompt: str = "the end", max_tokens: int = 6) -> list[int]:
    events: list[Any] = []
    finished = threading.Event()

    def listen(event: Any) -> None:
        events.append(event)
        if isinstance(event, RequestFinished):
            finished.set()

    service.submit(prompt, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True), listen)
    assert finished.wait(DEADLINE_S)
    return [token_id for event in events[:-1] for token_id in event.token_ids]


@pytest.mark.usefixtures("compiled_kernels")
def test_running_engine_serves_on_when_a_reload_meets_a_broken_directory(originals, sharded):
    shard = sorted(sharded.glob("model-*.safetensors"))[2]
    shard.write_bytes(shard.read_bytes()[:-100])
    service = EngineService(EngineConfig(model=str(originals / "single"), num_blocks=16))
    service.start()
    try:
        service.wait_ready(DEADLINE_S)
        before = answer(service)
        with pytest.raises(ModelLoadError, match=rf"cannot load tiny: {shard.name} \(\d+ bytes\) is truncated"):
            service.reload(EngineConfig(model=str(sharded), num_blocks=16))

        assert service.status.state is ServiceState.READY
        assert service.status.model_name == "single"
        assert "truncated or corrupt" in str(service.status.error)
        assert answer(service) == before
    finally:
        service.shutdown()


@pytest.mark.usefixtures("compiled_kernels")
def test_trap_30_notices_of_a_model_reach_the_status_and_survive_new_settings(directory, monkeypatch):
    notice = "Something of this model is not active."
    monkeypatch.setattr(loading, "load_model", lambda *given: replace(load_model(*given), notices=(notice,)))
    service = EngineService(EngineConfig(model=str(directory), num_blocks=16))
    service.start()
    try:
        service.wait_ready(DEADLINE_S)
        before = service.status.notices
        service.reload(EngineConfig(model=str(directory), num_blocks=8))

        assert before == service.status.notices == (notice,)
    finally:
        service.shutdown()


@pytest.mark.usefixtures("compiled_kernels")
def test_model_with_a_window_serves_contexts_longer_than_it_without_a_notice(directory):
    change_json(directory / "config.json", architectures=["MistralForCausalLM"], sliding_window=24)
    service = EngineService(EngineConfig(model=str(directory), num_blocks=16))
    service.start()
    try:
        service.wait_ready(DEADLINE_S)

        assert (service.status.max_model_len, service.status.notices) == (128, ())
        assert len(answer(service, "the end of the thing " * 3, max_tokens=40)) == 40
    finally:
        service.shutdown()
