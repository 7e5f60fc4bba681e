"""Generation on a tiny model: order, resumption, the model's own answers, loops, errors."""

from __future__ import annotations

import itertools

import pytest

from workbench.config import EngineConfig
from workbench.engine.core import EngineCore
from workbench.engine.loading import engine_thread_mode, load_engine
from workbench.errors import EngineError
from workbench.sampling_params import SamplingParams
from workbench.speculation.train.generate import Generation
from workbench.speculation.train.prompts import Conversation
from workbench.speculation.train.sequences import read_sequences, shard_paths

EOS = 2
CONVERSATIONS = [
    Conversation("a", None, ("one",)),
    Conversation("a", None, ("two", "and then?", "at last?")),
    Conversation("b", "be brief", ("three",)),
    Conversation("b", "be brief", ("four", "more")),
    *(Conversation("c", None, (f"number {index}",)) for index in range(8)),
]
NUM_ANSWERS = 1 + 3 + 1 + 2 + 8


class KilledError(Exception):
    """The run was killed."""


def sampling(prompt_id: int, turn: int) -> SamplingParams:
    """Long and short answers, so that they do not end in the order of their prompts."""
    temperature = (0.0, 1.0)[prompt_id % 2]
    length = 24 if prompt_id % 3 == 0 else 5
    return SamplingParams(temperature=temperature, max_tokens=length, seed=100 * prompt_id + turn)


@pytest.fixture(scope="module")
def loaded(tiny_model_path):
    """A loaded model in the mode that an engine's thread runs in."""
    with engine_thread_mode():
        yield load_engine(
            EngineConfig(model=str(tiny_model_path), num_blocks=8, num_threads=1), 0, lambda _: None
        ).core.loaded


@pytest.fixture
def make_core(loaded, tiny_model_path):
    def make(max_num_seqs: int = 4) -> EngineCore:
        settings = EngineConfig(
            model=str(tiny_model_path), num_blocks=200, max_num_seqs=max_num_seqs, check_integrity=True
        )
        return EngineCore(settings, loaded)

    return make


def shards(folder):
    return [list(read_sequences(path)) for path in shard_paths(folder)]


def generate(core, folder, num_tokens=10_000, sampling=sampling, on_progress=lambda _: None, shard_tokens=40):
    folder.mkdir(exist_ok=True)
    generation = Generation(core, CONVERSATIONS, sampling, folder, shard_tokens)
    generation.run(num_tokens, on_progress)
    return generation


def test_generation_answers_every_turn_in_the_order_of_the_prompts(make_core, tmp_path):
    generation = generate(make_core(), tmp_path)

    answers = [one for shard in shards(tmp_path) for one in shard]
    expected = [(i, turn) for i, conversation in enumerate(CONVERSATIONS) for turn in range(len(conversation.turns))]
    assert [(one.prompt_id, one.turn) for one in answers] == expected
    assert len(answers) == NUM_ANSWERS
    assert generation.num_tokens == sum(one.num_generated for one in answers)
    assert [one.temperature for one in answers[:2]] == [0.0, 1.0]


def test_shards_end_with_the_conversation_that_fills_them(make_core, tmp_path):
    generate(make_core(), tmp_path)

    *full, last = shards(tmp_path)
    assert len(full) >= 2
    for shard in full:
        last_prompt = shard[-1].prompt_id
        assert sum(one.num_generated for one in shard) >= 40
        assert sum(one.num_generated for one in shard if one.prompt_id != last_prompt) < 40
    assert last


def test_prompts_hold_the_models_own_earlier_answers(make_core, tmp_path):
    core = make_core()
    generate(core, tmp_path)

    first, second = (one for shard in shards(tmp_path) for one in shard if one.prompt_id == 3)
    decode = core.loaded.tokenizer.decode
    answer = decode(first.token_ids[first.num_prompt_tokens :]).strip()
    prompt = decode(second.token_ids[: second.num_prompt_tokens], skip_special_tokens=False)
    assert answer
    assert prompt == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nfour<|im_end|>\n"
        f"<|im_start|>assistant\n{answer}<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )


def test_answers_keep_the_token_that_ends_them(make_core, tmp_path):
    generate(make_core(), tmp_path, sampling=lambda *_: SamplingParams(logit_bias={EOS: 100}, seed=0))

    assert {one.token_ids[one.num_prompt_tokens :] for shard in shards(tmp_path) for one in shard} == {(EOS,)}


@pytest.mark.parametrize("num_steps", [3, 17, 30])
def test_interrupted_run_leaves_the_same_shards_as_an_uninterrupted_one(make_core, tmp_path, num_steps):
    generate(make_core(), tmp_path / "whole")
    steps = itertools.count(1)

    def interrupt(_):
        if next(steps) == num_steps:
            raise KilledError

    with pytest.raises(KilledError):
        generate(make_core(), tmp_path / "resumed", on_progress=interrupt)
    before = len(shards(tmp_path / "resumed"))
    generate(make_core(), tmp_path / "resumed")

    whole = shards(tmp_path / "whole")
    assert shards(tmp_path / "resumed") == whole
    assert before < len(whole)


def test_shards_do_not_depend_on_how_many_run_at_once(make_core, tmp_path):
    generate(make_core(max_num_seqs=1), tmp_path / "alone")
    generate(make_core(max_num_seqs=7), tmp_path / "together")

    assert shards(tmp_path / "alone") == shards(tmp_path / "together")


def test_run_ends_when_it_has_the_tokens_that_were_asked_for(make_core, tmp_path):
    core = make_core()
    generation = generate(core, tmp_path, num_tokens=50)

    kept = [one for shard in shards(tmp_path) for one in shard]
    assert generation.num_tokens == sum(one.num_generated for one in kept)
    assert 50 <= generation.num_tokens < 50 + 3 * 24
    assert not core.scheduler.has_work


def test_finished_run_does_nothing_when_it_is_started_again(make_core, tmp_path):
    generate(make_core(), tmp_path)
    before = shards(tmp_path)
    core = make_core()
    generate(core, tmp_path)

    assert shards(tmp_path) == before
    assert core.scheduler.requests == {}


def test_loop_ends_the_answer_and_its_conversation(make_core, tmp_path):
    core = make_core()
    generate(
        core, tmp_path, sampling=lambda *_: SamplingParams(allowed_token_ids=[70], max_tokens=100, ignore_eos=True)
    )

    answers = [one for shard in shards(tmp_path) for one in shard]
    assert [one.prompt_id for one in answers] == list(range(12))
    assert {one.token_ids[one.num_prompt_tokens :] for one in answers} == {(70,) * 18}
    core.check_integrity()


def test_error_of_a_step_ends_the_run_and_leaves_the_shards(make_core, tmp_path, monkeypatch):
    core = make_core()
    execute, steps = core.runner.execute, itertools.count()

    def fail(*args):
        if next(steps) == 28:
            raise RuntimeError("no more heat")
        return execute(*args)

    monkeypatch.setattr(core.runner, "execute", fail)
    with pytest.raises(EngineError, match="generation stopped: no more heat"):
        generate(core, tmp_path, shard_tokens=10)

    kept = shards(tmp_path)
    assert kept
    assert [one.prompt_id for one in kept[0]] == [0]
