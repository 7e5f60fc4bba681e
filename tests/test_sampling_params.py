import math

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
        ("top_k", -2, "at least 1"),
        ("top_k", 1.5, "at least 1"),
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
def test_stop_token_outside_the_vocabulary_is_refused_with_the_range(token_id):
    with pytest.raises(InvalidSamplingParamsError, match="from 0 to 99"):
        SamplingParams(stop_token_ids=[token_id]).check_vocabulary(100)
