"""Each rule against a plain reference that treats one row at a time, token by token."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.engine.logit_rules import apply_rules, completing_tokens
from workbench.engine.row_rules import RowRules
from workbench.sampling_params import SamplingParams

VOCAB = 12


def reference(logits, rules):
    """The rules of one row as their definitions say them, on a list of floats."""
    params = rules.params
    row = list(logits)
    if params.allowed_token_ids is not None:
        row = [x if i in params.allowed_token_ids else -math.inf for i, x in enumerate(row)]
    for token in rules.held_back_ids:
        row[token] = -math.inf
    output = list(rules.context[rules.num_prompt_tokens :])
    cut = list(row)
    for word in rules.bad_word_ids:
        if output[len(output) - len(word) + 1 :] == list(word[:-1]) and len(output) >= len(word) - 1:
            cut[word[-1]] = -math.inf
    if any(x > -math.inf for x in cut):
        row = cut
    for token, bias in params.logit_bias.items():
        row[token] += bias
    for token in set(rules.context) if params.has_penalties else ():
        row[token] = (
            row[token] / params.repetition_penalty if row[token] > 0 else row[token] * params.repetition_penalty
        )
        row[token] -= params.frequency_penalty * output.count(token)
        row[token] -= params.presence_penalty * (token in output)
    return row


def applied(logits, rules):
    result = logits.clone()
    apply_rules(result, list(enumerate(rules)))
    return result


tokens = st.integers(0, VOCAB - 1)
row_rules = st.builds(
    lambda params, context, prompt, held, words: RowRules(params, context, min(prompt, len(context)), held, words),
    st.builds(
        SamplingParams,
        repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
        presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
        frequency_penalty=st.sampled_from([0.0, 0.25, -0.5]),
        logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, -1.5, 2.0, 100.0]), max_size=3),
        allowed_token_ids=st.none() | st.lists(tokens, min_size=1, max_size=6, unique=True),
        bad_words=st.just(("x",)),
    ),
    st.lists(tokens, max_size=12),
    st.integers(0, 6),
    st.lists(tokens, max_size=2, unique=True),
    st.lists(st.lists(tokens, min_size=1, max_size=3), max_size=3),
)


@given(st.lists(row_rules, min_size=1, max_size=4), st.integers(0, 2**31))
@settings(max_examples=300, deadline=None)
def test_rules_of_a_mixed_batch_equal_the_reference_row_by_row(rules, seed):
    logits = torch.randn(len(rules), VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    together = applied(logits, rules)

    for row, rule in enumerate(rules):
        expected = torch.tensor(reference(logits[row].tolist(), rule))
        assert torch.allclose(together[row], expected, atol=1e-5, equal_nan=False)
        assert torch.equal(together[row], applied(logits[row : row + 1], [rule])[0])


def test_rows_without_rules_are_not_touched():
    logits = torch.randn(3, VOCAB)
    result = logits.clone()
    apply_rules(result, [(1, RowRules(SamplingParams(logit_bias={3: 5.0})))])

    assert torch.equal(result[[0, 2]], logits[[0, 2]])
    assert result[1, 3] == logits[1, 3] + 5


def test_repetition_penalty_sees_prompt_and_output_while_the_others_see_the_output_only():
    logits = torch.tensor([[4.0, -4.0, 4.0, -4.0, 1.0]])
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=1.0)
    rules = RowRules(params, context=[0, 1, 2, 2, 3], num_prompt_tokens=2)

    assert applied(logits, [rules]).tolist() == [[2.0, -8.0, 2.0 - 1.0 - 1.0, -8.0 - 0.5 - 1.0, 1.0]]


@pytest.mark.parametrize(
    ("output", "expected"),
    [([], [9]), ([1], [9, 2]), ([1, 2], [9, 3]), ([2, 1, 2], [9, 3]), ([1, 2, 3], [9])],
)
def test_bad_word_is_cut_at_the_token_that_would_complete_it(output, expected):
    assert completing_tokens(output, [(9,), (1, 2), (1, 2, 3)]) == expected


def test_bad_words_do_not_look_into_the_prompt():
    rules = RowRules(SamplingParams(bad_words="x"), context=[1], num_prompt_tokens=1, bad_word_ids=[(1, 2)])

    assert not torch.isneginf(applied(torch.zeros(1, VOCAB), [rules])).any()


def test_bad_words_yield_when_nothing_else_is_allowed():
    rules = RowRules(SamplingParams(allowed_token_ids=[4], bad_words="x"), bad_word_ids=[(4,)])

    assert applied(torch.zeros(1, VOCAB), [rules]).argmax().item() == 4
