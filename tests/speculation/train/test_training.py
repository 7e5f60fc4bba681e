"""Training on a tiny model: it learns, goes on exactly where it was killed, and what it exports drafts as measured."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest
import torch

from kernels.ops import load_backend
from tests.models.tiny_gguf import write_tiny_gguf
from tests.speculation.tiny_head import random_head
from workbench.config import EngineConfig
from workbench.engine.loading import engine_thread_mode, load_engine
from workbench.engine.messages import RequestFinished, Submit, TokenEvent
from workbench.errors import ConfigurationError
from workbench.models.loader import load_model
from workbench.sampling_params import SamplingParams
from workbench.speculation.eagle_file import read_facts
from workbench.speculation.train import __main__ as command_line
from workbench.speculation.train.acceptance import measure
from workbench.speculation.train.examples import Examples, read_data
from workbench.speculation.train.features import compute_features
from workbench.speculation.train.generate import Generation
from workbench.speculation.train.head_module import TrainingHead
from workbench.speculation.train.loss import Objective
from workbench.speculation.train.prompts import Conversation
from workbench.speculation.train.training import Training, TrainingSettings, read_checkpoint
from workbench.speculation_params import SpeculationParams

NUM_TOKENS = 40


@pytest.fixture(scope="module")
def target(tiny_model_path):
    return load_model(str(tiny_model_path), load_backend("cpu"), lambda _: None)


@pytest.fixture(scope="module")
def data(tiny_model_path, tmp_path_factory):
    """A folder with shards of answers at temperature 0."""
    folder = tmp_path_factory.mktemp("data")
    conversations = [Conversation("a", None, (f"number {index}",)) for index in range(6)]
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, seed=0)
    with engine_thread_mode():
        config = EngineConfig(model=str(tiny_model_path), num_blocks=200, num_threads=1)
        core = load_engine(config, 0, lambda _: None).core
        Generation(core, conversations, lambda *_: params, folder).run(10_000)
    return folder


@pytest.fixture(scope="module")
def examples(target, data):
    sequences = read_data(data)
    return Examples(sequences, list(compute_features(target.model, sequences)))


SETTINGS = TrainingSettings(
    num_epochs=3, batch_tokens=60, learning_rate=3e-3, dropout=0.1, objective=Objective(num_steps=2)
)


def training(target, examples, folder, settings=SETTINGS, facts=None):
    head = TrainingHead.from_target(target.model, torch.arange(269))
    return head, Training(head, examples, settings, folder, facts or {"data": "a"})


class KilledError(Exception):
    """The run was killed."""


@pytest.mark.parametrize(("killed_after", "checkpoint_every_s", "resumed_at"), [(5, 0.0, 4), (5, 1e9, 0), (9, 0.0, 8)])
def test_interrupted_training_ends_with_the_same_weights(
    target, examples, tmp_path, killed_after, checkpoint_every_s, resumed_at
):
    whole, run = training(target, examples, tmp_path / "whole")
    assert run.num_steps == 9
    losses: list[float] = []
    run.run(lambda loss, _: losses.append(loss), 1e9)

    _, run = training(target, examples, tmp_path / "killed")
    steps = itertools.count(1)

    def kill(loss, _):
        if next(steps) == killed_after:
            raise KilledError

    with pytest.raises(KilledError):
        run.run(kill, checkpoint_every_s)
    resumed, run = training(target, examples, tmp_path / "killed")
    assert run.step == resumed_at
    later: list[float] = []
    run.run(lambda loss, _: later.append(loss), 1e9)
    assert later == losses[resumed_at:]
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in resumed.state_dict().items())


def test_training_makes_the_loss_smaller_and_leaves_the_target_alone(target, examples, tmp_path):
    head = random_head(target.model, num_tokens=269)
    run = Training(head, examples, replace(SETTINGS, num_epochs=20), tmp_path, {})
    losses: list[float] = []
    counts: list[int] = []

    def note(loss, num_tokens):
        losses.append(loss)
        counts.append(num_tokens)

    run.run(note, 1e9)
    assert losses[-1] < losses[0] - 0.5  # what is left is the entropy of a random model
    assert sum(counts) == 20 * sum(one.num_generated - 1 for one in examples.sequences)
    assert torch.equal(head.embedding, target.model.weights.embedding.dense())
    assert read_checkpoint(tmp_path).step == 60


def test_numbers_are_left_out_while_training_only(target, examples, tmp_path):
    head, run = training(target, examples, tmp_path, settings=replace(SETTINGS, dropout=0.5))
    batch = examples.batch(examples.numbers[:2])

    def hidden(is_training: bool) -> torch.Tensor:
        head.train(is_training)
        with torch.no_grad():
            return next(iter(head(batch.token_ids, batch.features, batch.pieces, 1))).hidden

    assert not torch.equal(hidden(True), hidden(True))
    assert torch.equal(hidden(False), hidden(False))
    assert run.step == 0


def test_learning_rate_warms_up_and_falls(target, examples, tmp_path):
    settings = TrainingSettings(num_epochs=7, batch_tokens=60, warm_up=0.19, learning_rate=1.0)
    _, run = training(target, examples, tmp_path, settings)
    rates = []
    for step in range(run.num_steps):
        run.step = step
        rates.append(run._rate())
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0.05 < rates[-1] < 0.06


def test_norms_do_not_decay(target, examples, tmp_path):
    _, run = training(target, examples, tmp_path)
    groups = run._optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.01, 0.0]
    assert [{parameter.ndim for parameter in group["params"]} for group in groups] == [{2}, {1}]


@pytest.mark.parametrize(
    ("settings", "facts", "words"),
    [
        (SETTINGS, {"data": "b"}, r"data 'a' instead of 'b'"),
        (TrainingSettings(num_epochs=2), {"data": "a"}, r"settings .*'num_epochs': 3.* instead of .*'num_epochs': 2"),
    ],
)
def test_folder_of_another_training_is_refused(target, examples, tmp_path, settings, facts, words):
    _, run = training(target, examples, tmp_path)
    run.save()
    with pytest.raises(ConfigurationError, match=f"holds a training with {words}.*: name another --out"):
        training(target, examples, tmp_path, settings, facts)


def test_checkpoint_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match=r"there is no checkpoint\.pt in .*: name what `train --out` named"):
        read_checkpoint(tmp_path)


# ------------------------------------------------------------------------------- commands


@pytest.fixture(scope="module")
def trained(tiny_model_path, data, tmp_path_factory):
    """A head trained by the command line on the very texts that it is measured on."""
    folder = tmp_path_factory.mktemp("trained")
    common = ["--model", str(tiny_model_path), "--held-out", str(data), "--cache", str(folder / "cache")]
    train = ["train", *common, "--data", str(data), "--out", str(folder / "run"), "--vocabulary", "120"]
    train += ["--epochs", "20", "--batch-tokens", "60", "--learning-rate", "3e-3", "--report-every", "30"]
    assert command_line.main(train) == 0
    head = folder / "tiny.safetensors"
    assert command_line.main(["export", *common, str(folder / "run"), "--out", str(head)]) == 0
    return folder


def test_exported_file_tells_how_it_was_trained_and_what_it_is_worth(trained, data):
    facts = read_facts(trained / "tiny.safetensors")
    num_tokens = sum(one.num_generated for one in read_data(data))
    assert (facts["model"], facts["num_texts"], facts["num_tokens"]) == ("tiny", 6, num_tokens)
    assert (facts["num_steps"], facts["vocabulary_size"]) == (60, 120)
    assert [report["step"] for report in facts["reports"]] == [0, 30, 60]
    assert facts["settings"]["objective"]["num_steps"] == 3
    assert facts["held_out_coverage"] > 0.8
    assert facts["held_out"]["num_positions"] == num_tokens - 6
    assert facts["held_out"]["agreement"] > facts["reports"][0]["agreement"] + 0.05
    assert len(facts["held_out"]["by_position"]) == 4


def test_engine_accepts_as_many_drafted_tokens_as_were_measured(trained, data, tiny_model_path):
    """Greedy answers of the texts' prompts, four tokens drafted at a time: as many steps as were counted."""
    measured = read_facts(trained / "tiny.safetensors")["held_out"]
    sequences = read_data(data)
    config = EngineConfig(
        model=str(tiny_model_path), num_blocks=200, num_threads=1, eagle_head=str(trained / "tiny.safetensors")
    )
    answers: dict[str, list[int]] = {str(number): [] for number in range(len(sequences))}
    num_accepted = 0
    with engine_thread_mode():
        core = load_engine(config, 0, lambda _: None).core
        wishes = SpeculationParams(method="eagle", num_speculative_tokens=4, draft_confidence=0.0)
        for name, one in zip(answers, sequences, strict=True):
            prompt = one.token_ids[: one.num_prompt_tokens]
            params = SamplingParams(temperature=0.0, max_tokens=one.num_generated, ignore_eos=True)
            core.submit(Submit(name, prompt, params, time.monotonic(), speculation=wishes), seed=0)
        num_open = len(answers)
        while num_open:
            for event in core.step().events:
                if isinstance(event, TokenEvent):
                    answers[event.request_id] += event.token_ids
                    num_accepted += event.num_accepted_tokens
                num_open -= isinstance(event, RequestFinished)
    assert [tuple(answer) for answer in answers.values()] == [
        one.token_ids[one.num_prompt_tokens :] for one in sequences
    ]
    num_decoded = sum(one.num_generated - 1 for one in sequences)
    assert num_decoded / (num_decoded - num_accepted) == pytest.approx(measured["tokens_per_step"], rel=0.03)
    assert measured["tokens_per_step"] > 1.5


def test_measured_acceptance_is_that_of_the_exported_weights(trained, target, data):
    """The file holds rounded weights; so does what was measured."""
    checkpoint = read_checkpoint(trained / "run")
    head = TrainingHead.from_target(target.model, checkpoint.vocabulary)
    head.load_state_dict({name: value.half().float() for name, value in checkpoint.head.items()})
    sequences = read_data(data)
    examples = Examples(sequences, list(compute_features(target.model, sequences)))
    found = measure(head, [examples.batch(range(6))])
    assert found.agreement == pytest.approx(read_facts(trained / "tiny.safetensors")["held_out"]["agreement"], abs=1e-3)


def test_export_for_another_model_is_refused(trained, data, tmp_path, capsys):
    write_tiny_gguf(tmp_path / "other.gguf", seed=3)
    common = ["--model", str(tmp_path / "other.gguf"), "--held-out", str(data), "--cache", str(tmp_path)]
    assert command_line.main(["export", *common, str(trained / "run")]) == 2
    assert "was trained for tiny, not for other: give --model" in capsys.readouterr().err


def test_training_can_begin_with_the_head_of_another(trained, data, tiny_model_path, tmp_path):
    common = ["--model", str(tiny_model_path), "--held-out", str(data), "--cache", str(trained / "cache")]
    train = ["train", *common, "--data", str(data), "--out", str(tmp_path / "more"), "--start", str(trained / "run")]
    assert command_line.main([*train, "--drafted", "2", "--batch-tokens", "60"]) == 0

    before, after = read_checkpoint(trained / "run"), read_checkpoint(tmp_path / "more")
    assert torch.equal(after.vocabulary, before.vocabulary)
    assert {**after.reports[0], "step": 60} == {k: v for k, v in before.reports[-1].items() if k != "loss"}
    assert after.facts["start"] == {**before.facts, "num_steps": 60}


def test_training_that_begins_with_a_head_for_another_model_is_refused(trained, data, tmp_path, capsys):
    write_tiny_gguf(tmp_path / "other.gguf", seed=3)
    common = ["--model", str(tmp_path / "other.gguf"), "--held-out", str(data), "--cache", str(tmp_path)]
    train = ["train", *common, "--data", str(data), "--out", str(tmp_path / "more"), "--start", str(trained / "run")]
    assert command_line.main(train) == 2
    assert "holds a head for tiny, which is another model: give its --model, or no --start" in capsys.readouterr().err
