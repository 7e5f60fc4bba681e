from __future__ import annotations

import pytest

from workbench.bench.timings import RequestTimes, summarise


def test_summary_of_two_requests_has_literal_throughput_and_percentiles():
    figures = summarise(
        [
            RequestTimes(((0.1, 1), (0.2, 1), (0.4, 1))),
            RequestTimes(((0.3, 1), (0.4, 2), (0.5, 1))),
        ]
    )

    assert figures == pytest.approx(
        {
            "output_tok_per_s": 14.0,
            "ttft_p50_ms": 200.0,
            "ttft_p95_ms": 290.0,
            "itl_p50_ms": 100.0,
            "itl_p95_ms": 185.0,
            "duration_s": 0.5,
            "output_tokens": 7,
        }
    )


def test_summary_of_a_lone_request_adds_its_decode_speed_without_the_prefill():
    figures = summarise([RequestTimes(((1.0, 1), (1.25, 1), (1.5, 1)))])

    assert figures["decode_tok_per_s"] == 4.0
    assert figures["output_tok_per_s"] == 2.0
