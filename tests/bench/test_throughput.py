from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from workbench.bench.peer_workers.transformers_worker import run_static_batches
from workbench.bench.reference import BatchAnswer, ReferenceModel
from workbench.bench.throughput import _figures, run_engine
from workbench.bench.workloads import WorkItem
from workbench.engine.messages import Event, RequestFinished, TokenEvent
from workbench.engine.service import EngineService
from workbench.errors import EngineError
from workbench.telemetry.records import FinishReason, RequestMetrics

METRICS = RequestMetrics(0.0, None, None, None, None, None, 0.0, 1, 1, 0)


class FakeService:
    """Delivers the tokens of each request at once, two at a time, then ends it for `reason`."""

    def __init__(self, reason: FinishReason) -> None:
        self.reason = reason

    def submit(self, prompt: Any, params: Any, on_event: Callable[[Event], None]) -> str:
        assert (params.temperature, params.ignore_eos) == (0, True)
        for done in range(2, params.max_tokens + 1, 2):
            on_event(TokenEvent("r1", 0, (5, 6), "", done))
        on_event(RequestFinished("r1", self.reason, "", METRICS, error="it broke"))
        return "r1"


class FakeReference:
    """Takes one second a step, from time 0."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []

    def answer_batch(self, prompts: Any, max_tokens: int) -> BatchAnswer:
        self.batches.append((len(prompts), max_tokens))
        return BatchAnswer([], [float(step) for step in range(max_tokens)])


def test_engine_run_notes_every_delivery_of_every_request():
    items = [WorkItem((1,), 4), WorkItem((1, 2), 2)]

    times = run_engine(cast(EngineService, FakeService(FinishReason.LENGTH)), items)

    assert [each.num_tokens for each in times] == [4, 2]
    assert [len(each.deliveries) for each in times] == [2, 1]


def test_engine_run_refuses_to_report_when_a_request_failed():
    with pytest.raises(EngineError, match="request 0 ended early, error: it broke"):
        run_engine(cast(EngineService, FakeService(FinishReason.ERROR)), [WorkItem((1,), 4)])


def test_static_batches_run_as_long_as_their_longest_row_and_count_only_wanted_tokens():
    reference = FakeReference()
    items = [WorkItem((1,), 2 + index % 3) for index in range(10)]

    deliveries = run_static_batches(
        cast(ReferenceModel, reference),
        [list(item.prompt_token_ids) for item in items],
        [item.max_tokens for item in items],
    )

    assert reference.batches == [(8, 4), (2, 4)]
    assert [len(each) for each in deliveries] == [2, 3, 4, 2, 3, 4, 2, 3, 4, 2]


def test_ratio_is_taken_round_by_round_with_its_spread():
    measured = {
        "workbench": [{"output_tok_per_s": 10.0}, {"output_tok_per_s": 12.0}, {"output_tok_per_s": 20.0}],
        "transformers": [{"output_tok_per_s": 5.0}, {"output_tok_per_s": 4.0}, {"output_tok_per_s": 5.0}],
    }

    assert _figures(measured, "transformers") == {
        "output_tok_per_s": 12.0,
        "transformers_output_tok_per_s": 5.0,
        "ratio_to_transformers": 3.0,
        "ratio_to_transformers_min": 2.0,
        "ratio_to_transformers_max": 4.0,
    }
