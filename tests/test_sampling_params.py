import math
from typing import Any

import pytest

from workbench.errors import InvalidSamplingParamsError
from workbench.sampling_params import SamplingParams


def test_defaults_are_vllms():
    params = SamplingParams()

    assert (params.temperature, params.top_p, params.top_k, params.max_tokens, params.seed) == (1.0, 1.0, 0, 16, None)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("temperature", math.nan, "from 0 to 100"),
        ("temperature", math.inf, "from 0 to 100"),
        ("temperature", -0.1, "from 0 to 100"),
        ("temperature", "hot", "from 0 to 100"),
        ("top_p", 0, "above 0"),
        ("top_p", 1.01, "above 0"),
        ("top_p", math.nan, "above 0"),
        ("top_k", -2, "of at least -1; 0 and -1 keep all"),
        ("top_k", 1.5, "of at least -1; 0 and -1 keep all"),
        ("n", 0, "from 1 to 64"),
        ("n", 65, "from 1 to 64"),
        ("min_p", -0.1, "from 0 to 1"),
        ("min_p", 1.5, "from 0 to 1"),
        ("repetition_penalty", 0, "above 0"),
        ("repetition_penalty", math.nan, "above 0"),
        ("presence_penalty", 2.1, "from -2 to 2"),
        ("frequency_penalty", -2.1, "from -2 to 2"),
        ("logit_bias", [1], "a mapping"),
        ("logit_bias", {1: math.inf}, "from -100 to 100"),
        ("logit_bias", {"a": 1.0}, "token ids"),
        ("allowed_token_ids", [], "at least one token id"),
        ("bad_words", [""], "at least one character"),
        ("min_tokens", -1, "at least 0"),
        ("min_tokens", 17, "at most max_tokens, which is 16"),
        ("logprobs", 21, "from 0 to 20"),
        ("logprobs", -1, "from 0 to 20"),
        ("prompt_logprobs", 21, "from 0 to 20"),
        ("seed", -1, "whole number"),
        ("seed", 2**63, "whole number"),
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", -5, "at least 1"),
        ("max_tokens", True, "at least 1"),
        ("stop", [""], "at least one character"),
        ("stop", [1], "str"),
        ("stop", ["x"] * 65, "at most 64"),
        ("stop_token_ids", ["x"], "int"),
        ("ignore_eos", 1, "True or False"),
    ],
)
def test_bad_value_is_refused_with_its_name_value_and_remedy(name, value, remedy):
    with pytest.raises(InvalidSamplingParamsError) as caught:
        SamplingParams(**{name: value})

    assert str(caught.value).startswith(f"{name}=")
    assert remedy in str(caught.value)


def test_single_stop_and_single_token_id_become_tuples():
    params = SamplingParams(stop="###", stop_token_ids=7)

    assert params.stop == ("###",)
    assert params.stop_token_ids == (7,)


@pytest.mark.parametrize("token_id", [-1, 100, 2**40])
@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
def test_trap_20_token_id_outside_the_vocabulary_is_refused_with_the_range(name, token_id):
    value: Any = {token_id: 1.0} if name == "logit_bias" else [token_id]
    with pytest.raises(InvalidSamplingParamsError, match=f"{name}={token_id} .* from 0 to 99"):
        SamplingParams(**{name: value}).check_vocabulary(100)


def test_trap_25_every_odd_value_has_a_defined_answer():
    odds: tuple[dict[str, Any], ...] = ({"max_tokens": 0}, {"n": 0}, {"temperature": math.nan}, {"top_k": -5})
    for odd in odds:
        with pytest.raises(InvalidSamplingParamsError):
            SamplingParams(**odd)
    assert SamplingParams(max_tokens=None).max_tokens is None
    assert SamplingParams(top_k=-1).top_k == -1


def test_beams_take_no_rules_about_single_tokens_and_return_at_most_their_number():
    assert SamplingParams(n=3, use_beam_search=True, beam_width=4).num_sequences == 4
    assert SamplingParams(n=3, beam_width=1).num_sequences == 3
    for odd in (
        {"n": 3, "beam_width": 2},
        {"stop": "x"},
        {"logprobs": 1},
        {"repetition_penalty": 1.1},
        {"beam_width": 0},
        {"beam_width": 17},
        {"length_penalty": float("nan")},
        {"early_stopping": "sometimes"},
    ):
        with pytest.raises(InvalidSamplingParamsError, match=next(iter(odd))):
            SamplingParams(use_beam_search=True, **odd)
