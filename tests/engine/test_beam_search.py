"""Beam search on a scripted model with answers worked out by hand, and against transformers on a tiny random one."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch

from workbench.engine.beam_search import BeamSearch, Continuation, Hypothesis

END = 0

# Probability of the next token after an output. Token 0 ends it.
SCRIPT = {
    (): {0: 0.2, 1: 0.5, 2: 0.3},
    (1,): {0: 0.6, 1: 0.3, 2: 0.1},
    (2,): {0: 0.08, 1: 0.02, 2: 0.9},
    (2, 2): {0: 0.5, 1: 0.4, 2: 0.1},
    (1, 1): {0: 0.8, 1: 0.1, 2: 0.1},
    (2, 2, 1): {0: 0.3, 1: 0.3, 2: 0.4},
    (2, 2, 2): {0: 0.5, 1: 0.3, 2: 0.2},
}


def logs(probabilities):
    return [(token_id, math.log(p)) for token_id, p in probabilities.items()]


def run(search, script=SCRIPT):
    """Drive the search to its end; return the running outputs after each step."""
    outputs: list[tuple[int, ...]] = [()]
    steps = []
    while not search.is_done:
        candidates = [logs(script[output]) for output in outputs]
        outputs = [(*outputs[c.parent], c.token_id) for c in search.advance(outputs, candidates)]
        steps.append(outputs)
    return steps


def answers(search, count=9):
    return [(h.token_ids, h.is_stopped) for h in search.best(count)]


def test_beam_search_follows_the_script_worked_out_by_hand():
    search = BeamSearch(width=2, max_new_tokens=10, end_token_ids=[END])
    # The end token, third of the first step (0.2), is no hypothesis. In the second step 1-0 (0.30) becomes one, and
    # 2-2 (0.27) and 1-1 (0.15) go on. In the third 2-2-0 (0.135) and 1-1-0 (0.12) end; 2-2-1 has 0.108.
    assert run(search) == [[(1,), (2,)], [(2, 2), (1, 1)], []]
    assert answers(search) == [((1, 0), True), ((2, 2, 0), True)]
    assert [h.score for h in search.best(2)] == pytest.approx([math.log(0.3) / 2, math.log(0.135) / 3], abs=1e-6)
    assert answers(search, count=1) == [((1, 0), True)]


def test_continuations_name_their_parent_token_and_summed_score():
    search = BeamSearch(width=2, max_new_tokens=10, end_token_ids=[END])
    first = search.advance([()], [logs(SCRIPT[()])])
    second = search.advance([(1,), (2,)], [logs(SCRIPT[(1,)]), logs(SCRIPT[(2,)])])
    assert [(c.parent, c.token_id) for c in first] == [(0, 1), (0, 2)]
    assert [c.score for c in first] == pytest.approx([math.log(0.5), math.log(0.3)], abs=1e-6)
    assert [(c.parent, c.token_id) for c in second] == [(1, 2), (0, 1)]
    assert [c.score for c in second] == pytest.approx([math.log(0.27), math.log(0.15)], abs=1e-6)


@pytest.mark.parametrize(
    ("length_penalty", "expected", "scores"),
    [
        (0.0, [(1, 0), (2, 2, 0)], [math.log(0.3), math.log(0.135)]),
        (2.0, [(2, 2, 0), (1, 1, 0)], [math.log(0.135) / 9, math.log(0.12) / 9]),
        (-1.0, [(1, 0), (2, 2, 0)], [math.log(0.3) * 2, math.log(0.135) * 3]),
    ],
)
def test_length_penalty_decides_which_of_three_hypotheses_stay(length_penalty, expected, scores):
    search = BeamSearch(2, 10, length_penalty, end_token_ids=[END])
    run(search)
    assert [h.token_ids for h in search.best(2)] == expected
    assert [h.score for h in search.best(2)] == pytest.approx(scores, abs=1e-5)


def test_best_ranks_end_when_the_length_limit_is_reached():
    search = BeamSearch(width=2, max_new_tokens=2, end_token_ids=[END])
    assert run(search) == [[(1,), (2,)], []]
    assert answers(search) == [((1, 0), True), ((2, 2), False)]
    assert search.best(2)[1].score == pytest.approx(math.log(0.27) / 2, abs=1e-6)


def test_end_tokens_end_nothing_when_there_are_none():
    search = BeamSearch(width=2, max_new_tokens=2)
    assert search.num_candidates == 2
    assert run(search) == [[(1,), (2,)], []]
    assert answers(search) == [((1, 0), False), ((2, 2), False)]


@pytest.mark.parametrize(("early_stopping", "num_steps"), [(True, 2), (False, 3), ("never", 3)])
def test_early_stopping_true_ends_although_a_running_beam_is_better(early_stopping, num_steps):
    script = {
        (): {0: 0.3, 1: 0.6, 2: 0.1},
        (1,): {0: 0.35, 1: 0.6, 2: 0.05},
        (2,): {0: 0.1, 1: 0.1, 2: 0.1},
        (1, 1): {0: 0.9, 1: 0.05, 2: 0.05},
        (1, 2): {0: 0.9, 1: 0.05, 2: 0.05},
    }
    search = BeamSearch(2, 3, early_stopping=early_stopping, end_token_ids=[END])
    # After two steps 0 (0.3) and 1-0 (0.21) are complete, and 1-1 (0.36) is better per token than both.
    assert len(run(search, script)) == num_steps
    assert search.best(1)[0].token_ids == ((1, 0) if early_stopping is True else (1, 1, 0))


@pytest.mark.parametrize(("early_stopping", "length_penalty", "goes_on"), [
    (False, 1.0, False),
    ("never", 1.0, True),  # log(0.108) / 10 would be better than log(0.135) / 3
    ("never", 0.0, False),
    ("never", -1.0, False),
])  # fmt: skip
def test_early_stopping_never_reckons_with_the_full_length_where_length_helps(early_stopping, length_penalty, goes_on):
    search = BeamSearch(2, 10, length_penalty, early_stopping, [END])
    outputs: list[tuple[int, ...]] = [()]
    for _ in range(3):
        continuations = search.advance(outputs, [logs(SCRIPT[output]) for output in outputs])
        outputs = [(*outputs[c.parent], c.token_id) for c in continuations]
    assert search.is_done is not goes_on
    assert outputs == ([(2, 2, 1), (2, 2, 2)] if goes_on else [])


def test_early_stopping_never_reckons_with_the_present_length_where_length_harms():
    search = BeamSearch(2, 4, length_penalty=-1.0, early_stopping="never", end_token_ids=[END])
    search.advance([()], [logs({0: 0.3, 1: 0.6, 2: 0.1})])
    search.advance([(1,), (2,)], [logs({0: 0.35, 1: 0.6, 2: 0.05}), logs({1: 0.1})])
    assert answers(search) == [((0,), True), ((1, 0), True)]
    # 1-1 has log(0.36) * 2 = -2.04, between log(0.3) = -1.20 and log(0.21) * 2 = -3.12. At length 4 it has -4.09.
    assert not search.is_done


def test_width_one_keeps_the_second_token_running_when_the_first_ends():
    search = BeamSearch(1, 10, early_stopping="never", end_token_ids=[END])
    assert search.advance([()], [[(0, -0.5), (1, -1.0)]]) == [Continuation(0, 1, -1.0)]
    assert search.best(1) == [Hypothesis((0,), -0.5, True)]


def test_ties_go_by_beam_and_then_by_token_id():
    search = BeamSearch(width=3, max_new_tokens=10)
    first = search.advance([()], [[(7, -1.0), (3, -1.0), (5, -1.0)]])
    assert [(c.parent, c.token_id) for c in first] == [(0, 3), (0, 5), (0, 7)]
    second = search.advance([(3,), (5,), (7,)], [[(9, -1.0)], [(8, -1.0), (2, -1.0)], [(1, -1.0)]])
    assert [(c.parent, c.token_id) for c in second] == [(0, 9), (1, 2), (1, 8)]


def test_older_hypothesis_stays_when_a_new_one_is_equal():
    search = BeamSearch(1, 10, length_penalty=0.0, early_stopping="never", end_token_ids=[END])
    search.advance([()], [[(0, -1.0), (1, -1.0)]])
    assert search.is_done  # the running beam is only as good, so it cannot replace the hypothesis
    assert answers(search) == [((0,), True)]


def test_sums_are_rounded_to_float32_as_in_the_reference():
    search = BeamSearch(width=2, max_new_tokens=10)
    search.advance([()], [[(1, -16.0), (2, -16.5)]])
    # In float32 the two sums of the first beam are the same number, so that the lower id wins; in float64 5 would.
    second = search.advance([(1,), (2,)], [[(5, -1.0), (4, -1.0000001)], [(3, -9.0)]])
    assert second == [Continuation(0, 4, -17.0), Continuation(0, 5, -17.0)]


def test_number_of_candidates_leaves_room_for_every_end_token():
    search = BeamSearch(2, 10, early_stopping="never", end_token_ids=[0, 1])
    assert search.num_candidates == 4
    candidates = [(0, -1.0), (1, -1.5), (2, -3.0), (3, -4.0)]
    assert [c.token_id for c in search.advance([()], [candidates])] == [2, 3]
    assert answers(search) == [((0,), True), ((1,), True)]


def test_more_candidates_than_needed_change_nothing():
    few, many = (BeamSearch(2, 10, end_token_ids=[END]) for _ in range(2))
    tokens = [(token_id, -0.5 * (token_id + 1)) for token_id in range(9)]
    assert few.advance([()], [tokens[: few.num_candidates]]) == many.advance([()], [tokens])
    outputs = [(1,), (2,)]
    assert few.advance(outputs, [tokens[:3]] * 2) == many.advance(outputs, [tokens] * 2)
    assert few.best(2) == many.best(2) != []


def test_impossible_tokens_are_left_out_and_fewer_beams_run():
    search = BeamSearch(width=3, max_new_tokens=3, end_token_ids=[END])
    assert search.advance([()], [[(1, -1.0), (0, -math.inf), (2, -math.inf)]]) == [Continuation(0, 1, -1.0)]
    assert [c.token_id for c in search.advance([(1,)], [[(1, -1.0), (2, -2.0)]])] == [1, 2]
    assert search.advance([(1, 1), (1, 2)], [[(3, -1.0)], [(4, -1.0)]]) == []
    assert answers(search) == [((1, 1, 3), False), ((1, 2, 4), False)]


def test_running_beams_fill_up_when_no_token_is_possible():
    search = BeamSearch(width=2, max_new_tokens=9, end_token_ids=[END])
    search.advance([()], [[(1, -1.0), (2, -2.0)]])
    assert search.advance([(1,), (2,)], [[(3, -math.inf)], []]) == []
    assert search.is_done
    assert search.best(2) == []
    assert search.best(2, [(1,), (2,)]) == [Hypothesis((1,), -1.0, False), Hypothesis((2,), -2.0, False)]


def test_running_beams_fill_up_behind_the_hypotheses_when_the_search_is_cut_off():
    search = BeamSearch(width=2, max_new_tokens=9, end_token_ids=[END])
    assert search.best(2, [()]) == []
    search.advance([()], [[(1, -1.0), (END, -2.0), (2, -3.0)]])
    expected = [Hypothesis((END,), -2.0, True), Hypothesis((1,), -1.0, False)]
    assert search.best(2, [(1,), (2,)]) == expected
    assert search.best(2) == expected[:1]


def test_advance_refuses_when_the_search_is_over_or_beams_are_missing():
    search = BeamSearch(width=2, max_new_tokens=2)
    search.advance([()], [[(1, -1.0), (2, -2.0)]])
    with pytest.raises(ValueError):
        search.advance([(1,)], [[(1, -1.0)]])
    search.advance([(1,), (2,)], [[(1, -1.0)], [(1, -1.0)]])
    with pytest.raises(ValueError, match="is over"):
        search.advance([(1, 1)], [[(1, -1.0)]])


def test_scores_stay_ordered_when_a_length_penalty_leaves_the_range_of_float32():
    search = BeamSearch(1, 1, length_penalty=-10.0)
    search.advance([tuple([1] * 9000)], [[(1, -5.0), (2, -6.0)]])
    assert search.best(1)[0].token_ids[-1] == 1
    assert search.best(1)[0].score == -math.inf


# Against transformers

VOCAB_SIZE = 24
NUM_NEW_TOKENS = 10
PROMPTS = ([3, 14, 15, 9], [7, 21, 8])
END_TOKENS: dict[int, tuple[int, ...]] = {0: (), 1: (5,), 2: (5, 11)}
END_BIAS = 3.0
"""Makes the end tokens likely enough for answers of many lengths to compete."""


@functools.cache
def tiny_model(num_end_tokens: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        initializer_range=0.4,
    )
    model = LlamaForCausalLM(config).eval()
    bias = torch.zeros(VOCAB_SIZE)
    bias[list(END_TOKENS[num_end_tokens])] = END_BIAS
    model.lm_head.bias = torch.nn.Parameter(bias)
    return model


def reference(num_end_tokens, prompt, width, length_penalty, early_stopping):
    """What transformers answers: token ids, cut behind the first end token, and scores."""
    from transformers import GenerationConfig

    end_token_ids = END_TOKENS[num_end_tokens]
    config = GenerationConfig(
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=NUM_NEW_TOKENS,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        eos_token_id=list(end_token_ids) or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    found = tiny_model(num_end_tokens).generate(torch.tensor([prompt]), generation_config=config)
    outputs = []
    for row in found.sequences[:, len(prompt) :].tolist():
        ends = [i for i, token_id in enumerate(row) if token_id in end_token_ids]
        outputs.append(tuple(row[: ends[0] + 1] if ends else row))
    return outputs, found.sequences_scores.tolist()


@torch.no_grad()
def ours(num_end_tokens, prompt, width, length_penalty, early_stopping):
    """What `BeamSearch` answers with the same model, computed anew from the start for each token."""
    model = tiny_model(num_end_tokens)
    search = BeamSearch(width, NUM_NEW_TOKENS, length_penalty, early_stopping, END_TOKENS[num_end_tokens])
    outputs: list[tuple[int, ...]] = [()]
    while not search.is_done:
        logits = model(torch.tensor([[*prompt, *output] for output in outputs])).logits[:, -1]
        best = torch.log_softmax(logits, dim=-1).topk(search.num_candidates)
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        candidates = [list(zip(ids, values, strict=True)) for ids, values in rows]
        outputs = [(*outputs[c.parent], c.token_id) for c in search.advance(outputs, candidates)]
    return search.best(width)


@pytest.fixture
def beams_of_one(monkeypatch):
    """Let transformers run its beam search for one beam too, where it would take its greedy loop."""
    from transformers import GenerationConfig
    from transformers.generation import GenerationMode

    monkeypatch.setattr(GenerationConfig, "get_generation_mode", lambda *_: GenerationMode.BEAM_SEARCH)


@pytest.fixture
def one_thread():
    """The tensors are tiny: several threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("beams_of_one", "one_thread")
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("num_end_tokens", [0, 1, 2])
def test_answers_and_scores_equal_those_of_transformers(num_end_tokens, width, length_penalty, early_stopping):
    for prompt in PROMPTS:
        expected, scores = reference(num_end_tokens, prompt, width, length_penalty, early_stopping)
        found = ours(num_end_tokens, prompt, width, length_penalty, early_stopping)
        assert [h.token_ids for h in found] == expected
        assert [h.score for h in found] == pytest.approx(scores, abs=1e-4)
        assert [h.is_stopped for h in found] == [output[-1] in END_TOKENS[num_end_tokens] for output in expected]


@pytest.mark.usefixtures("one_thread")
def test_settings_compared_with_transformers_lead_to_different_answers():
    """Otherwise the comparison could not tell one setting from another."""
    by_rule = {outputs_of(2.0, rule) for rule in (True, False, "never")}
    assert len(by_rule) == 3
    by_penalty = [outputs_of(penalty, "never") for penalty in (-1.0, 0.0, 1.0, 2.0)]
    assert len(set(by_penalty)) == 4
    assert [len(output) for output in by_penalty[0]] == [1, 3, 4, 5]


def outputs_of(length_penalty, early_stopping):
    return tuple(h.token_ids for h in ours(1, PROMPTS[0], 4, length_penalty, early_stopping))
