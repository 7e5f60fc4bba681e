"""Presets saved from the page: whole files, good names, and no built-in one overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.errors import ConfigurationError
from workbench.presets import PRESET_DIRECTORY, Preset, load_presets, read_preset
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import SpeculationParams
from workbench.ui.preset_store import BUILT_IN, PresetStore, is_local

ENGINE = {"num_blocks": 300, "block_size": 16, "max_num_batched_tokens": 256, "max_num_seqs": 8}
PARAMS = SamplingParams(temperature=0.7, top_k=40, max_tokens=64, seed=3, stop="###")
EVERYTHING = SamplingParams(
    temperature=0.5,
    top_p=0.9,
    top_k=7,
    min_p=0.05,
    seed=11,
    max_tokens=None,
    stop=("a", "b\n"),
    repetition_penalty=1.2,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    min_tokens=4,
    bad_words=("x y",),
    logit_bias={5: -2.5, 9: 1.0},
    ignore_eos=True,
)


def first(name: str = "first") -> dict[str, Preset]:
    return {name: Preset(name, "First", "For tests.", ENGINE, PARAMS)}


@pytest.mark.parametrize("params", [PARAMS, EVERYTHING, SamplingParams(max_tokens=None)])
def test_saved_preset_is_read_back_as_it_was(tmp_path: Path, params: SamplingParams):
    store = PresetStore(first(), tmp_path)
    assert store.save("My-1", "Mine", "What it is for.", ENGINE, params) is False
    preset = read_preset(tmp_path / "My-1.toml")
    assert (preset.name, preset.title, preset.description) == ("My-1", "Mine", "What it is for.")
    assert (preset.engine, preset.sampling) == (ENGINE, params)


def test_saved_preset_is_offered_at_once_and_the_folder_holds_nothing_else(tmp_path: Path):
    store = PresetStore(first(), tmp_path)
    store.save("mine", "Mine", "D", ENGINE, PARAMS)
    assert store.choices == [("First", "first"), ("Mine", "mine")]
    assert store["mine"].engine["num_blocks"] == 300
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_saved_preset_takes_its_name_for_a_missing_title(tmp_path: Path):
    store = PresetStore(first(), tmp_path)
    store.save("mine", " ", "", ENGINE, PARAMS)
    assert (store["mine"].title, store["mine"].description) == ("mine", "Saved from the page.")


def test_saving_again_replaces_the_values_and_keeps_the_comments(tmp_path: Path):
    store = PresetStore(first(), tmp_path)
    (tmp_path / "mine.toml").write_text(
        'title = "Old"\ndescription = "D"\n[engine]\n# measured on the big machine\nnum_blocks = 7  # few\n'
        "num_threads = 1\n[sampling]\nmin_p = 0.1\n"
    )
    assert store.save("mine", "New", "D", ENGINE, PARAMS) is True
    text = (tmp_path / "mine.toml").read_text()
    assert "# measured on the big machine\nnum_blocks = 300" in text
    assert read_preset(tmp_path / "mine.toml").engine == ENGINE
    assert read_preset(tmp_path / "mine.toml").sampling == PARAMS


def test_titles_that_two_presets_share_are_told_apart(tmp_path: Path):
    store = PresetStore(first(), tmp_path)
    store.save("other", "First", "D", ENGINE, PARAMS)
    assert store.choices == [("First (first)", "first"), ("First (other)", "other")]


@pytest.mark.parametrize("name", ["", "-a", "a b", "../a", "a/b", "a.b", "ä", "a\n", "a" * 41])
def test_saving_refuses_a_bad_name(tmp_path: Path, name: str):
    with pytest.raises(ConfigurationError, match="is not allowed: give 1 to 40 letters, digits and dashes"):
        PresetStore(first(), tmp_path).save(name, "T", "D", ENGINE, PARAMS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["default", "Default", "many-users"])
def test_saving_refuses_the_name_of_a_built_in_preset(tmp_path: Path, name: str):
    with pytest.raises(ConfigurationError, match="belongs to a built-in preset"):
        PresetStore(first(), tmp_path).save(name, "T", "D", ENGINE, PARAMS)
    assert list(tmp_path.iterdir()) == []


def test_built_in_names_are_presets_of_the_project():
    assert set(BUILT_IN) <= set(load_presets(PRESET_DIRECTORY))


def test_saving_a_wrong_value_leaves_the_old_file(tmp_path: Path):
    store = PresetStore(first(), tmp_path)
    store.save("mine", "T", "D", ENGINE, PARAMS)
    before = (tmp_path / "mine.toml").read_bytes()
    with pytest.raises(ConfigurationError, match=r"mine\.toml: \[engine\] block_size=7"):
        store.save("mine", "T", "D", {**ENGINE, "block_size": 7}, PARAMS)
    assert (tmp_path / "mine.toml").read_bytes() == before
    assert store["mine"].engine["block_size"] == 16


def test_saving_says_when_the_file_cannot_be_written(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"mine\.toml cannot be written: .*absent"):
        PresetStore(first(), tmp_path / "absent").save("mine", "T", "D", ENGINE, PARAMS)


def test_saving_is_refused_where_other_machines_reach_the_page():
    store = PresetStore(first())
    assert store.can_save is False
    with pytest.raises(ConfigurationError, match="open to other machines"):
        store.save("mine", "T", "D", ENGINE, PARAMS)


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("127.0.0.1", True), ("::1", True), ("192.0.2.7", False), (None, False), ("", False), ("testclient", False)],
)
def test_only_this_machines_own_addresses_count_as_local(host: str | None, is_ours: bool):
    assert is_local(host) is is_ours


def test_saved_preset_keeps_how_tokens_are_drafted(tmp_path: Path):
    drafting = SpeculationParams(method="draft_model", num_speculative_tokens=7, prompt_lookup_max=9)
    store = PresetStore(first(), tmp_path)
    store.save("mine", "T", "D", ENGINE, PARAMS, drafting)
    assert read_preset(tmp_path / "mine.toml").speculation == drafting
    store.save("mine", "T", "D", ENGINE, PARAMS)
    assert not read_preset(tmp_path / "mine.toml").speculation.is_on
