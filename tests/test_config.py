import os

import pytest

from workbench.config import EngineConfig, usable_cores
from workbench.engine.limits import kv_block_bytes, resolve_max_model_len, resolve_num_blocks
from workbench.errors import ConfigurationError, KVCacheTooLargeError
from workbench.models.config import ModelConfig

MODEL = ModelConfig(
    name="tiny",
    architecture="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_ids=frozenset({0}),
)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"block_size": 12}, "block_size=12 is not supported: choose one of 8, 16, 32"),
        ({"dtype": "int3"}, "dtype='int3'"),
        ({"scheduling_policy": "lifo"}, "choose one of fcfs, priority, sjf"),
        ({"kernel_backend": "cuda"}, "choose one of auto, cpu, reference"),
        ({"num_blocks": 0}, "num_blocks=0 must be a whole number of at least 1"),
        ({"max_num_batched_tokens": 0}, "at least 1"),
        ({"max_num_seqs": 1.5}, "at least 1"),
        ({"num_threads": 4096}, "num_threads=4096 is more than the"),
        ({"model": ""}, "is not a name"),
        ({"blok_size": 16}, "unknown engine setting 'blok_size'"),
    ],
)
def test_bad_setting_is_refused_with_value_and_remedy(values, message):
    with pytest.raises(ConfigurationError) as caught:
        EngineConfig.from_mapping(values)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "openmp", "expected"),
    [
        ({}, None, 4),
        ({}, "3", 3),
        ({}, "2,1", 2),
        ({}, "64", 4),
        ({}, "many", 4),
        ({}, "0", 4),
        ({"num_threads": 4}, "1", 4),
    ],
)
def test_threads_are_what_is_set_then_what_openmp_is_told_then_the_usable_cores(
    settings, openmp, expected, monkeypatch
):
    monkeypatch.setattr("workbench.config.usable_cores", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if openmp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", openmp)

    assert EngineConfig(**settings).kernel_threads == expected


def test_cores_are_those_that_the_process_may_run_on():
    assert usable_cores() == len(os.sched_getaffinity(0))


def test_block_bytes_count_keys_and_values_of_every_layer():
    assert kv_block_bytes(MODEL, block_size=16) == 2 * 2 * 16 * 2 * 16 * 4


def test_num_blocks_comes_from_the_byte_budget_rounded_down():
    assert resolve_num_blocks(EngineConfig(kv_cache_bytes=8192 * 10 + 8191), MODEL) == 10


def test_num_blocks_wins_over_the_byte_budget():
    assert resolve_num_blocks(EngineConfig(num_blocks=3, kv_cache_bytes=8192 * 10), MODEL) == 3


def test_budget_below_one_block_is_refused_with_the_size_of_a_block():
    with pytest.raises(ConfigurationError, match="one block of 16 tokens takes 8,192 bytes"):
        resolve_num_blocks(EngineConfig(kv_cache_bytes=8191), MODEL)


@pytest.mark.parametrize("settings", [{"num_blocks": 10**9}, {"kv_cache_bytes": 2**50}])
def test_pool_that_does_not_fit_is_refused_with_what_is_asked_and_what_is_free(settings):
    with pytest.raises(KVCacheTooLargeError, match=r"needs [\d,]+ bytes .* usable: give num_blocks of at most [\d,]+"):
        resolve_num_blocks(EngineConfig(**settings), MODEL)


def test_context_longer_than_the_model_is_refused():
    assert resolve_max_model_len(EngineConfig(), MODEL) == 512
    assert resolve_max_model_len(EngineConfig(max_model_len=100), MODEL) == 100
    with pytest.raises(ConfigurationError, match="max_model_len=513 is more than the 512 positions of tiny"):
        resolve_max_model_len(EngineConfig(max_model_len=513), MODEL)
