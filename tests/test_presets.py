"""Presets are data: what is wrong in a file is said with the file, the key, the value and the remedy."""

from pathlib import Path

import pytest

from workbench.errors import ConfigurationError
from workbench.presets import PRESET_DIRECTORY, load_presets, read_preset, select_preset
from workbench.speculation_params import SpeculationParams


def write(directory: Path, text: str, name: str = "mine") -> Path:
    path = directory / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


HEAD = 'title = "T"\ndescription = "D"\n'


def test_presets_in_the_repository_are_valid_and_default_comes_first():
    presets = load_presets(PRESET_DIRECTORY)
    assert next(iter(presets)) == "default"
    assert {"default", "before-paging", "long-context", "many-users", "swapping", "tiny-memory"} <= set(presets)


@pytest.mark.parametrize(
    ("name", "num_blocks", "block_size", "budget", "max_num_seqs"),
    [
        ("default", 1024, 16, 256, 64),
        ("long-context", 288, 32, 512, 8),
        ("many-users", 1536, 16, 256, 128),
        ("tiny-memory", 64, 16, 256, 16),
    ],
)
def test_preset_has_the_sizes_that_its_description_tells(
    name: str, num_blocks: int, block_size: int, budget: int, max_num_seqs: int
):
    preset = load_presets(PRESET_DIRECTORY)[name]
    config = preset.engine_config()
    assert (config.num_blocks, config.block_size, config.max_num_seqs) == (num_blocks, block_size, max_num_seqs)
    assert config.max_num_batched_tokens == budget
    assert preset.description.startswith((f"{num_blocks:,} blocks of {block_size} tokens", f"{max_num_seqs} requests"))


def test_preset_for_long_contexts_holds_one_whole_context_and_a_few_blocks():
    config = load_presets(PRESET_DIRECTORY)["long-context"].engine_config()
    assert config.num_blocks is not None
    assert config.num_blocks * config.block_size == 8192 + 1024


def test_preset_overrides_win_over_the_file():
    config = load_presets()["default"].engine_config(num_blocks=32, block_size=None, max_num_seqs=3)
    assert (config.num_blocks, config.block_size, config.max_num_seqs) == (32, 16, 3)


def test_preset_block_count_gives_way_to_a_byte_budget():
    config = load_presets()["default"].engine_config(kv_cache_bytes=1 << 20)
    assert (config.num_blocks, config.kv_cache_bytes) == (None, 1 << 20)


def test_preset_is_refused_by_name_with_the_list_of_those_that_exist():
    with pytest.raises(ConfigurationError, match="'huge' does not exist: choose one of default, "):
        select_preset(load_presets(), "huge")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("[engine]\nnum_block = 4", r"mine\.toml: \[engine\] num_block=4 is not a known key.*num_blocks"),
        ("[engine]\nnum_blocks = 'many'", r"\[engine\] num_blocks='many' has the wrong type: give a whole number"),
        ("[engine]\nnum_blocks = true", r"num_blocks=True has the wrong type"),
        ("[engine]\nblock_size = 7", r"mine\.toml: \[engine\] block_size=7 is not supported: choose one of 8, 16, 32"),
        ("[engine]\nmax_num_seqs = 0", r"max_num_seqs=0 must be a whole number of at least 1"),
        ("[engine]\ncheck_integrity = 'yes'", r"check_integrity='yes' has the wrong type: give true or false"),
        ("[sampling]\ntemperature = -1.0", r"\[sampling\] temperature=-1.0 is not valid"),
        ("[sampling]\ntemperature = 'hot'", r"\[sampling\] temperature='hot' has the wrong type: give a number"),
        ("[sampling]\nbeams = 2", r"\[sampling\] beams=2 is not a known key"),
        ("[sampling]\nbad_words = 3", r"\[sampling\] bad_words=3 has the wrong type: give a text or a list"),
        ("[sampling]\nbad_words = [3]", r"\[sampling\] bad_words=\[3\] is not valid"),
        ("[sampling]\nmin_p = 1.5", r"\[sampling\] min_p=1.5 is not valid"),
        ("[sampling]\nlogit_bias = { the = 1 }", r"logit_bias: 'the' is not a token id"),
        ("[sampling]\nlogit_bias = { 5 = 101 }", r"logit_bias=\{5: 101\} is not valid"),
        ("[sampling]\nmin_tokens = 9\nmax_tokens = 8", r"mine\.toml: \[sampling\] min_tokens=9 .* which is 8"),
        ("sampling = 3", r"sampling=3 must be a table"),
        ("speed = 3", r"speed=3 is not a known key"),
    ],
)
def test_preset_is_refused_with_file_key_value_and_remedy(tmp_path: Path, body: str, words: str):
    with pytest.raises(ConfigurationError, match=words):
        read_preset(write(tmp_path, HEAD + body))


def test_preset_without_a_title_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"title=None must be a text"):
        read_preset(write(tmp_path, 'description = "D"'))


def test_preset_that_is_not_toml_is_refused_with_the_place(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"mine\.toml: .*line 2"):
        read_preset(write(tmp_path, "title = [\n?"))


def test_preset_directory_without_files_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="no preset in"):
        load_presets(tmp_path)


def test_preset_sampling_takes_whole_numbers_for_real_ones_and_one_stop_text(tmp_path: Path):
    preset = read_preset(write(tmp_path, HEAD + "[sampling]\ntemperature = 1\nstop = '###'"))
    assert preset.sampling.temperature == 1
    assert preset.sampling.stop == ("###",)


def test_preset_without_max_tokens_lets_an_answer_fill_the_context(tmp_path: Path):
    preset = read_preset(write(tmp_path, HEAD + "[sampling]\nmin_tokens = 40"))
    assert (preset.sampling.max_tokens, preset.sampling.min_tokens) == (None, 40)


def test_preset_sampling_takes_lists_and_a_table_of_token_ids(tmp_path: Path):
    body = "[sampling]\nstop = ['a', 'b']\nbad_words = ['c']\nignore_eos = true\nlogit_bias = { 7 = -2.5 }"
    sampling = read_preset(write(tmp_path, HEAD + body)).sampling
    assert (sampling.stop, sampling.bad_words, sampling.ignore_eos) == (("a", "b"), ("c",), True)
    assert sampling.logit_bias == {7: -2.5}


def test_preset_says_how_tokens_are_drafted(tmp_path: Path):
    body = '[speculation]\nmethod = "ngram"\nnum_speculative_tokens = 7\nspeculative_adaptive = true\n'
    wanted = SpeculationParams(method="ngram", num_speculative_tokens=7, speculative_adaptive=True)
    assert read_preset(write(tmp_path, HEAD + body)).speculation == wanted
    assert read_preset(write(tmp_path, HEAD)).speculation.method == "none"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('method = "guess"', r"\[speculation\] method='guess' is not valid: give one of none, ngram"),
        ("num_speculative_tokens = 2.5", "has the wrong type: give a whole number"),
        ("num_speculative_tokens = 17", "give a whole number from 1 to 16"),
        ("prompt_lookup_min = 4\nprompt_lookup_max = 2", "prompt_lookup_min=4 is not valid"),
        ("k = 3", r"\[speculation\] k=3 is not a known key"),
    ],
)
def test_preset_with_a_wrong_way_of_drafting_is_refused(tmp_path: Path, line: str, words: str):
    with pytest.raises(ConfigurationError, match=words):
        read_preset(write(tmp_path, f"{HEAD}[speculation]\n{line}\n"))
