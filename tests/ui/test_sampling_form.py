"""From what the sampling form holds to parameters, and back."""

from __future__ import annotations

from typing import Any

import gradio as gr
import pytest

from tests.ui.scripted_service import OneTokenPerCharacter
from workbench.errors import EngineStoppedError, InvalidSamplingParamsError, InvalidSpeculationParamsError
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import NO_SPECULATION, SpeculationParams
from workbench.ui.sampling_form import (
    FIELDS,
    FORM_VERSION,
    form_values,
    kept_form,
    logit_bias,
    priority_of,
    sampling_params,
    speculation_params,
    speculation_settings,
)

NEUTRAL = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40.0,
    "min_p": 0,
    "seed": "",
    "max_tokens": None,
    "stop": "",
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "min_tokens": None,
    "bad_words": "",
    "logit_bias": "",
    "ignore_eos": False,
    "n": 1,
    "use_beam_search": False,
    "beam_width": 4,
    "length_penalty": 1,
    "early_stopping": "no",
    "method": "none",
    "num_speculative_tokens": 4,
    "speculative_adaptive": False,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
    "draft_confidence": 0.15,
    "priority": 0,
    "logprobs": False,
}


def read(**values: Any) -> SamplingParams:
    shown = NEUTRAL | values
    return sampling_params([shown[name] for name in FIELDS], OneTokenPerCharacter)


def not_loaded() -> Any:
    raise EngineStoppedError("the engine is loading: wait until the model is loaded")


def test_form_values_become_parameters_field_by_field():
    params = read(
        seed="123",
        max_tokens=64.0,
        stop="###\n\nEnd",
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        min_tokens=4.0,
        bad_words="one\ntwo words",
        logit_bias="7: -5",
        ignore_eos=True,
        n=3.0,
        beam_width=5.0,
        length_penalty=0.5,
        early_stopping="never",
    )
    assert params == SamplingParams(
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=123,
        max_tokens=64,
        stop=("###", "End"),
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        min_tokens=4,
        bad_words=("one", "two words"),
        logit_bias={7: -5.0},
        ignore_eos=True,
        n=3,
        beam_width=5,
        length_penalty=0.5,
        early_stopping="never",
    )


def test_form_asks_for_beams():
    params = read(n=2, use_beam_search=True, beam_width=2.0, early_stopping="yes")
    assert (params.n, params.use_beam_search, params.beam_width, params.early_stopping) == (2, True, 2, True)


@pytest.mark.parametrize(("typed", "priority"), [(None, 0), (0, 0), (-3.0, -3), (7, 7)])
def test_form_gives_the_priority_beside_the_parameters(typed: float | None, priority: int):
    values = [(NEUTRAL | {"priority": typed})[name] for name in FIELDS]
    assert priority_of(values) == priority


def test_form_refuses_a_priority_that_is_not_whole():
    with pytest.raises(InvalidSamplingParamsError, match=r"priority=0\.5 is not valid: give a whole number"):
        priority_of([(NEUTRAL | {"priority": 0.5})[name] for name in FIELDS])


def test_form_left_alone_changes_nothing():
    assert read() == SamplingParams(temperature=0.7, top_p=0.9, top_k=40, max_tokens=None)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temperature": None}, "temperature is empty"),
        ({"repetition_penalty": None}, "repetition_penalty is empty"),
        ({"temperature": -1}, "temperature=-1"),
        ({"top_k": 0.5}, "top_k=0.5"),
        ({"seed": "abc"}, "seed='abc'"),
        ({"seed": "-4"}, "seed=-4"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"min_p": 1.5}, "min_p=1.5"),
        ({"presence_penalty": 3}, "presence_penalty=3"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens=9 is not valid: give at most max_tokens, which is 8"),
        ({"n": None}, "n is empty"),
        ({"n": 3, "use_beam_search": True, "beam_width": 2}, "n=3 is not valid: give at most beam_width, which is 2"),
        ({"use_beam_search": True, "stop": "###"}, "beam search has no stop"),
        ({"early_stopping": "sometimes"}, "early_stopping='sometimes'"),
        ({"early_stopping": None}, "early_stopping=None"),
        ({"logit_bias": "7: 101"}, "logit_bias={7: 101.0} is not valid"),
    ],
)
def test_form_refuses_a_wrong_value_by_name(values: Any, words: str):
    with pytest.raises(InvalidSamplingParamsError, match=words):
        read(**values)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("7: -5\n\n 12 :0.5", {7: -5.0, 12: 0.5}),
        ("a: 1", {97: 1.0}),
        (" : 2", None),
        (":: 3", {58: 3.0}),
        ('"7": 4', {55: 4.0}),
        ('" ": 4', {32: 4.0}),
    ],
)
def test_logit_bias_names_tokens_by_id_or_text(text: str, found: Any):
    if found is None:
        with pytest.raises(InvalidSamplingParamsError, match="write a token, a colon and a number"):
            logit_bias(text, OneTokenPerCharacter)
    else:
        assert logit_bias(text, OneTokenPerCharacter) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("7", r"the line '7' is not understood: write a token, a colon and a number"),
        ("7:", r"the line '7:' is not understood: '' is not a number"),
        ("7: much", r"'much' is not a number: give one from -100 to 100"),
        ("ab: 1", r"'ab' is 2 tokens \(97, 98\): give a single one, or its id"),
        (" a: 1", r"' a' is 2 tokens"),
        ("a: 1\n97: 2", r"token 97 is given twice"),
    ],
)
def test_logit_bias_refuses_a_line_with_the_line_and_the_remedy(text: str, words: str):
    with pytest.raises(InvalidSamplingParamsError, match=words):
        logit_bias(text, OneTokenPerCharacter)


def test_logit_bias_asks_for_the_tokenizer_only_to_look_up_a_text():
    assert logit_bias("7: 1", not_loaded) == {7: 1.0}
    with pytest.raises(EngineStoppedError):
        logit_bias("a: 1", not_loaded)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=None),
        SamplingParams(temperature=0.5, seed=3, stop=("a", "b"), bad_words="c", logit_bias={5: -2.5}, min_tokens=2),
        SamplingParams(n=2, use_beam_search=True, beam_width=3, length_penalty=-1.0, early_stopping="never"),
        SamplingParams(early_stopping=True),
    ],
)
def test_form_shows_parameters_so_that_they_are_read_back(params: SamplingParams):
    assert sampling_params(form_values(params), OneTokenPerCharacter) == params


def test_form_kept_by_the_browser_is_taken_back_only_when_it_fits():
    values = [*form_values(SamplingParams(temperature=0.5))[:-1], 2, "be brief"]
    assert kept_form({"version": FORM_VERSION, "values": values}) == values
    others: list[Any] = [
        None,
        [],
        {"version": FORM_VERSION - 1, "values": values},
        {"version": FORM_VERSION, "values": values[:-1]},
        {"version": FORM_VERSION},
    ]
    assert [kept_form(other) for other in others] == [None] * 5


def test_form_shows_parameters_and_leaves_the_visitors_priority_alone():
    assert dict(zip(FIELDS, form_values(SamplingParams()), strict=True))["priority"] == gr.skip()


@pytest.mark.parametrize(("n", "beam_width", "shown"), [(1, 1, (1, 2)), (3, 5, (3, 5)), (9, 16, (4, 8))])
def test_form_shows_no_more_answers_and_beams_than_it_offers(n: int, beam_width: int, shown: tuple[int, int]):
    values = dict(zip(FIELDS, form_values(SamplingParams(n=n, beam_width=beam_width)), strict=True))
    assert (values["n"], values["beam_width"]) == shown


DRAFTING = {
    "method": "ngram",
    "num_speculative_tokens": 7.0,
    "speculative_adaptive": True,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
    "draft_confidence": 0.4,
}


def form(**values: Any) -> list[Any]:
    return [(NEUTRAL | values)[name] for name in FIELDS]


def test_form_says_how_tokens_are_drafted():
    wanted = SpeculationParams(
        method="ngram",
        num_speculative_tokens=7,
        speculative_adaptive=True,
        prompt_lookup_min=1,
        prompt_lookup_max=3,
        draft_confidence=0.4,
    )
    assert speculation_params(form(**DRAFTING)) == wanted
    assert speculation_params(form_values(SamplingParams(), wanted)) == wanted


def test_nothing_is_drafted_with_beams_and_the_settings_are_kept():
    values = form(**DRAFTING, use_beam_search=True)
    assert speculation_params(values) == NO_SPECULATION
    assert speculation_settings(values).method == "ngram"


def test_wrong_number_of_drafted_tokens_is_refused():
    for count in (None, 0, 17):
        with pytest.raises(InvalidSpeculationParamsError, match="whole number from 1 to 16"):
            speculation_params(form(num_speculative_tokens=count))
