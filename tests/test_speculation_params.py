import msgspec
import pytest

from workbench.errors import InvalidSpeculationParamsError
from workbench.speculation_params import METHODS, SpeculationParams


@pytest.mark.parametrize("method", METHODS)
def test_params_take_every_method(method):
    assert SpeculationParams(method=method).is_on == (method != "none")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "medusa"}, "method='medusa' is not valid: give one of none, ngram, draft_model, eagle, hybrid"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens=0 is not valid: give a whole number from 1 to 16"),
        ({"num_speculative_tokens": 17}, "num_speculative_tokens=17 is not valid: give a whole number from 1 to 16"),
        ({"num_speculative_tokens": 2.0}, "num_speculative_tokens=2.0 is not valid: give a whole number from 1 to 16"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens=True is not valid"),
        ({"prompt_lookup_max": 40}, "prompt_lookup_max=40 is not valid: give a whole number from 1 to 16"),
        ({"prompt_lookup_min": 5}, "prompt_lookup_min=5 is not valid: give at most prompt_lookup_max, which is 4"),
        ({"speculative_adaptive": 1}, "speculative_adaptive=1 is not valid: give True or False"),
        ({"draft_confidence": 1}, "draft_confidence=1 is not valid: give a number from 0 to below 1"),
        ({"draft_confidence": -0.1}, "draft_confidence=-0.1 is not valid: give a number from 0 to below 1"),
        ({"draft_confidence": float("nan")}, "draft_confidence=nan is not valid: give a number from 0 to below 1"),
        ({"draft_confidence": None}, "draft_confidence=None is not valid: give a number from 0 to below 1"),
        ({"draft_confidence": True}, "draft_confidence=True is not valid: give a number from 0 to below 1"),
    ],
)
def test_params_refuse_bad_values_with_value_limit_and_remedy(values, message):
    with pytest.raises(InvalidSpeculationParamsError) as caught:
        SpeculationParams(**values)
    assert message in str(caught.value)


def test_params_survive_msgpack():
    params = SpeculationParams(method="ngram", num_speculative_tokens=7, speculative_adaptive=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SpeculationParams) == params
