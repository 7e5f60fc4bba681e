"""A burst of requests that begin alike: the others wait until there is something to share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ui.scripted_service import ScriptedService
from workbench.errors import PromptTooLongError, QueueFullError
from workbench.telemetry.records import FinishReason
from workbench.ui.background import MAX_UNFINISHED, BackgroundLoad
from workbench.ui.prefix_burst import OWN_TOKENS, PREFIX_TOKENS, REQUESTS, PrefixBurst


def burst_over(service: Any) -> tuple[PrefixBurst, BackgroundLoad]:
    load = BackgroundLoad(service)
    return PrefixBurst(service, load), load


def test_burst_follows_the_first_request_once_that_has_a_token():
    service = ScriptedService()
    burst, load = burst_over(service)

    assert burst.start() == "r1"
    assert list(service.prompts) == ["r1"]
    assert load.num_unfinished == REQUESTS == 6

    service.token("r1", "x", 1)
    service.token("r1", "y", 2)

    assert list(service.prompts) == ["r1", "r2", "r3", "r4", "r5", "r6"]
    assert load.num_unfinished == 6
    assert load.open_ids == ("r1", "r2", "r3", "r4", "r5", "r6")


def test_burst_prompts_share_their_beginning_and_differ_after_it():
    service = ScriptedService()
    burst, _ = burst_over(service)
    burst.start()
    service.token("r1", "x", 1)

    prompts = list(service.prompts.values())
    assert {len(prompt) for prompt in prompts} == {PREFIX_TOKENS + OWN_TOKENS} == {332}
    assert len({prompt[:PREFIX_TOKENS] for prompt in prompts}) == 1
    assert len({prompt[PREFIX_TOKENS:] for prompt in prompts}) == 6
    assert [params.seed for params in service.params.values()] == [2000, 2001, 2002, 2003, 2004, 2005]


def test_burst_fits_half_of_a_small_context():
    service = ScriptedService(max_model_len=100)
    burst, _ = burst_over(service)
    burst.start()
    assert len(service.prompts["r1"]) == 50
    assert service.params["r1"].max_tokens == 25


def test_burst_whose_first_request_ends_without_a_token_gives_its_places_back():
    service = ScriptedService()
    burst, load = burst_over(service)
    burst.start()
    service.finish("r1", FinishReason.ABORT)
    assert (list(service.prompts), load.num_unfinished) == (["r1"], 0)


def test_burst_gives_back_what_the_engine_refuses():
    service = ScriptedService()
    burst, load = burst_over(service)
    burst.start()
    service.refusal = QueueFullError("full")
    service.token("r1", "x", 1)
    assert load.num_unfinished == 1
    service.finish("r1")
    assert load.num_unfinished == 0


def test_burst_that_is_refused_at_once_leaves_nothing_behind():
    service = ScriptedService()
    service.refusal = PromptTooLongError("too long")
    burst, load = burst_over(service)
    with pytest.raises(PromptTooLongError):
        burst.start()
    assert load.num_unfinished == 0


def test_burst_counts_among_the_background_requests():
    service = ScriptedService()
    burst, load = burst_over(service)
    load.reserve(MAX_UNFINISHED - REQUESTS + 1)
    with pytest.raises(QueueFullError, match="59 background requests"):
        burst.start()
    assert load.num_unfinished == 59
