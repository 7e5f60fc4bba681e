"""The page writes each kind of number one way."""

import pytest

from workbench.ui import numbers


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "–"),
        (0.0381, "38.1 ms"),
        (0.09994, "99.9 ms"),
        (0.09996, "100 ms"),
        (0.412, "412 ms"),
        (1.117, "1,117 ms"),
        (12.34, "12.3 s"),
    ],
)
def test_milliseconds_are_whole_from_a_hundred_and_seconds_from_ten_thousand(seconds: float | None, words: str):
    assert numbers.milliseconds(seconds) == words


def test_counts_have_thousands_separators_and_a_missing_one_is_a_dash():
    assert (numbers.count(2048), numbers.count(0), numbers.count(None)) == ("2,048", "0", "–")


def test_rates_have_one_decimal():
    assert (numbers.rate(24.64), numbers.rate(None)) == ("24.6", "–")
