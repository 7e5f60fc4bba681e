"""Features are what the engine computes, whatever goes together, and are computed once."""

from __future__ import annotations

import pytest
import torch

from kernels.ops import load_backend
from workbench.config import EngineConfig
from workbench.engine.core import EngineCore
from workbench.engine.loading import engine_thread_mode, load_engine
from workbench.models.loader import load_model
from workbench.sampling_params import SamplingParams
from workbench.speculation.train import features
from workbench.speculation.train.features import FeatureFiles, compute_features
from workbench.speculation.train.generate import Generation
from workbench.speculation.train.prompts import Conversation
from workbench.speculation.train.sequences import GeneratedSequence, read_sequences, shard_paths


@pytest.fixture(scope="module")
def target(tiny_model_path):
    return load_model(str(tiny_model_path), load_backend("cpu"), lambda _: None)


@pytest.fixture(scope="module")
def sequences(tiny_model_path, tmp_path_factory):
    """Answers of the tiny model at temperature 0, and what the engine computed of them: states by (text, position)."""
    folder = tmp_path_factory.mktemp("answers")
    config = EngineConfig(model=str(tiny_model_path), num_blocks=200, max_num_seqs=4, num_threads=1)
    conversations = [Conversation("a", None, (f"number {index}" * (1 + index % 3),)) for index in range(9)]
    with engine_thread_mode():
        core: EngineCore = load_engine(config, 0, lambda _: None).core

        def sampling(prompt_id, turn):
            return SamplingParams(temperature=0.0, max_tokens=20 + 3 * prompt_id, ignore_eos=True, seed=0)

        Generation(core, conversations, sampling, folder).run(10_000)
    return [one for path in shard_paths(folder) for one in read_sequences(path)]


def text(*token_ids):
    return GeneratedSequence(token_ids, 1, 0, 0, 0.0)


def equal(one, other):
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("hidden", "best", "log_total"))


def test_best_tokens_are_those_that_the_engine_chose(target, sequences):
    assert len(sequences) == 9
    for one, found in zip(sequences, compute_features(target.model, sequences), strict=True):
        first = one.num_prompt_tokens
        assert found.best[first - 1 : -1].tolist() == list(one.token_ids[first:])
        assert found.hidden.shape == (len(one.token_ids), 64)
        assert found.hidden.dtype == torch.float16


def test_probabilities_follow_from_the_states(target, sequences):
    (found,) = compute_features(target.model, sequences[:1])
    logits = target.model.compute_logits(found.hidden.float())
    assert torch.allclose((logits - found.log_total[:, None]).exp().sum(-1), torch.ones(len(logits)), atol=1e-2)


@pytest.mark.parametrize("batch_tokens", [1, 7, 64, 100_000])
def test_features_do_not_depend_on_what_is_computed_together(target, sequences, monkeypatch, batch_tokens):
    together = list(compute_features(target.model, sequences))
    monkeypatch.setattr(features, "BATCH_TOKENS", batch_tokens)
    apart = compute_features(target.model, sequences)
    assert all(equal(*pair) for pair in zip(together, apart, strict=True))


def test_files_hold_each_text_and_are_computed_once(target, sequences, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "FILE_TOKENS", 120)
    files = FeatureFiles(tmp_path / "cache", sequences, "model")
    total = sum(len(one.token_ids) for one in sequences)
    assert files.num_missing_tokens == total
    done: list[int] = []
    files.compute(target.model, done.append)
    assert (sum(done), files.num_missing_tokens) == (total, 0)
    assert len(list((tmp_path / "cache").iterdir())) >= 4
    for number, expected in enumerate(compute_features(target.model, sequences)):
        assert equal(files[number], expected)
    again = FeatureFiles(tmp_path / "cache", sequences, "model")
    again.compute(None)  # type: ignore[arg-type]
    assert equal(again[3], files[3])


def test_interrupted_run_goes_on_where_it_was(target, sequences, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "FILE_TOKENS", 120)
    done: list[int] = []

    def interrupt(count):
        done.append(count)
        if len(done) == 4:
            raise KeyboardInterrupt

    files = FeatureFiles(tmp_path, sequences, "model")
    with pytest.raises(KeyboardInterrupt):
        files.compute(target.model, interrupt)
    left = files.num_missing_tokens
    assert 0 < left < sum(len(one.token_ids) for one in sequences)
    done = [0] * 10
    files.compute(target.model, interrupt)
    assert sum(done) == left
    for number, expected in enumerate(compute_features(target.model, sequences)):
        assert equal(files[number], expected)


def test_more_texts_keep_the_files_of_the_old_ones(target, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "FILE_TOKENS", 4)
    old = [text(3, 4, 5), text(6, 7), text(8, 9)]
    FeatureFiles(tmp_path, old, "model").compute(target.model)
    assert FeatureFiles(tmp_path, [*old, text(3, 3, 3)], "model").num_missing_tokens == 3
    assert FeatureFiles(tmp_path, [text(3, 4, 6), *old[1:]], "model").num_missing_tokens == 3
    assert FeatureFiles(tmp_path, old, "another model").num_missing_tokens == 7
