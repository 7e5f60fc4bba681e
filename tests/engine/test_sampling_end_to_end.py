"""Sampling parameters through the whole engine, on a tiny random model."""

from __future__ import annotations

import math
from typing import Any

import pytest

from workbench import LLM, SamplingParams
from workbench.errors import InvalidSamplingParamsError

VOCAB = 269
EOS = (0, 2)


@pytest.fixture(scope="module")
def llm(tiny_model_path):
    with LLM(str(tiny_model_path), num_blocks=64, max_num_batched_tokens=24, check_integrity=True) as llm:
        yield llm


def tokens(llm, prompt, **params):
    values: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, **params}
    return llm.generate(prompt, SamplingParams(**values))[0].outputs[0].token_ids


def test_allowed_token_ids_are_the_only_ones_generated(llm):
    assert set(tokens(llm, "hello", allowed_token_ids=[70, 71, 72], temperature=2.0, seed=1)) <= {70, 71, 72}


def test_logit_bias_of_100_forces_a_token_and_of_minus_100_forbids_it(llm):
    free = tokens(llm, "hello")
    assert tokens(llm, "hello", logit_bias={99: 100}) == (99,) * 12
    assert free[0] not in tokens(llm, "hello", logit_bias={free[0]: -100})


def test_bad_words_do_not_appear_in_the_text(llm):
    whole = llm.service.tokenizer.decode(tokens(llm, "hello", temperature=1.0, seed=5))
    word = next(whole[i : i + 2] for i in range(len(whole) - 1) if whole[i : i + 2].isascii())
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=12, ignore_eos=True, bad_words=[word])

    assert word not in llm.generate("hello", params)[0].outputs[0].text


def test_penalties_reduce_repetition(llm):
    plain = tokens(llm, "hello hello hello", max_tokens=60)
    penalized = tokens(llm, "hello hello hello", max_tokens=60, frequency_penalty=2.0, presence_penalty=2.0)

    assert len(set(penalized)) > len(set(plain))


def test_trap_21_min_tokens_holds_back_every_end_of_text_and_stop(llm):
    first = tokens(llm, "hello", max_tokens=1)[0]
    biased: dict[str, Any] = {"logit_bias": {EOS[0]: 50, EOS[1]: 49}, "ignore_eos": False}

    assert tokens(llm, "hello", **biased) == (EOS[0],)
    assert len(tokens(llm, "hello", min_tokens=5, **biased)) == 6
    held = tokens(llm, "hello", min_tokens=5, stop_token_ids=[first])
    assert first not in held[:5]


def test_trap_21_stop_text_inside_the_first_min_tokens_does_not_end_the_answer(llm):
    params: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "logit_bias": {70: 100}}
    text = llm.service.tokenizer.decode([70])
    (output,) = llm.generate("hello", SamplingParams(stop=text, min_tokens=4, **params))

    assert (output.outputs[0].text, len(output.outputs[0].token_ids)) == (text * 4, 5)
    assert output.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids=269"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias=269"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids=-1"),
        ({"allowed_token_ids": [0, 2], "min_tokens": 2}, "leaves no token"),
        ({"min_tokens": 510, "max_tokens": None}, "does not fit beside 5 prompt tokens"),
    ],
)
def test_trap_20_bad_parameter_is_refused_and_the_engine_lives(llm, params, message):
    with pytest.raises(InvalidSamplingParamsError, match=message):
        llm.generate("hello", SamplingParams(**params))

    assert len(tokens(llm, "hello")) == 12


def test_logprobs_report_the_chosen_token_and_the_most_likely_ones(llm):
    (output,) = llm.generate(
        "hello", SamplingParams(temperature=1.5, seed=3, max_tokens=5, ignore_eos=True, logprobs=2)
    )
    answer = output.outputs[0]
    assert answer.logprobs is not None

    assert len(answer.logprobs) == 5
    for token_id, position in zip(answer.token_ids, answer.logprobs, strict=True):
        assert token_id in position
        assert len(position) in (2, 3)
        best = max(position.values(), key=lambda one: one.logprob)
        assert best.rank == 1
        assert position[token_id].rank >= 1
        assert sum(math.exp(one.logprob) for one in position.values()) <= 1 + 1e-6


def test_logprobs_zero_reports_the_chosen_token_only(llm):
    (output,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=0))

    assert [list(position) for position in output.outputs[0].logprobs or ()] == [
        [token_id] for token_id in output.outputs[0].token_ids
    ]


def test_prompt_logprobs_of_a_chunked_prompt_agree_with_the_logprobs_of_generated_tokens(llm):
    ids = [*range(70, 110)]
    generated = llm.generate(ids, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=3))[0]
    answer = generated.outputs[0]
    whole = [*ids, *answer.token_ids]
    (output,) = llm.generate(whole, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3))
    assert output.prompt_logprobs is not None

    assert len(output.prompt_logprobs) == len(whole)
    assert output.prompt_logprobs[0] is None
    assert output.prompt_logprobs[40:] == answer.logprobs
    assert all(token_id in position for token_id, position in zip(whole[1:], output.prompt_logprobs[1:], strict=True))


def test_prompt_logprobs_are_reported_once_when_the_request_is_preempted(tiny_model_path):
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, prompt_logprobs=0)
    with LLM(str(tiny_model_path), num_blocks=8, block_size=8, max_num_batched_tokens=16) as small:
        outputs = small.generate([[*range(70, 90)], [*range(90, 110)]], params)

    assert max(output.metrics.num_preemptions for output in outputs) > 0
    assert [len(output.prompt_logprobs or ()) for output in outputs] == [20, 20]


def test_n_answers_are_the_answers_of_consecutive_seeds(llm):
    params: dict[str, Any] = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True}
    (output,) = llm.generate("hello", SamplingParams(n=3, seed=7, **params))
    single = [llm.generate("hello", SamplingParams(seed=seed, **params))[0].outputs[0] for seed in (7, 8, 9)]

    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert [answer.token_ids for answer in output.outputs] == [answer.token_ids for answer in single]


def test_mixed_batch_gives_everyone_what_they_get_alone(llm):
    many = [
        SamplingParams(temperature=0, max_tokens=10, ignore_eos=True),
        SamplingParams(temperature=1.0, seed=1, max_tokens=10, ignore_eos=True, min_p=0.05),
        SamplingParams(temperature=1.0, seed=2, max_tokens=10, ignore_eos=True, top_k=5, repetition_penalty=1.3),
        SamplingParams(temperature=0.8, seed=3, max_tokens=10, ignore_eos=True, top_p=0.9, frequency_penalty=0.5),
        SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logit_bias={80: 3.0}, logprobs=4),
        SamplingParams(temperature=1.2, seed=4, max_tokens=10, allowed_token_ids=[*range(60, 90)], min_tokens=10),
        SamplingParams(temperature=1.0, seed=5, max_tokens=10, ignore_eos=True, bad_words=["e", "the"]),
        SamplingParams(temperature=1.0, max_tokens=10, ignore_eos=True),
    ]
    prompts = [f"prompt {i} " * (1 + i) for i in range(len(many))]
    together = llm.generate(prompts, many)
    alone = [llm.generate(prompt, params)[0] for prompt, params in zip(prompts, many, strict=True)]

    for one, other in list(zip(together, alone, strict=True))[:-1]:  # the last one has no seed
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert one.outputs[0].logprobs == other.outputs[0].logprobs
