"""The buttons that load and disturb the engine: what they ask of it and what they say."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.ui.scripted_service import ScriptedService, request_state
from workbench.config import EngineConfig
from workbench.errors import EngineStoppedError
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import SpeculationParams
from workbench.telemetry.records import RequestStatus
from workbench.ui.active_turns import ActiveTurns
from workbench.ui.load_handlers import LoadHandlers
from workbench.ui.sampling_form import FIELDS, form_values

VISITOR: Any = SimpleNamespace(session_hash="tab-1", headers={})


def handlers_over(service: Any) -> LoadHandlers:
    return LoadHandlers(service, ActiveTurns(service))


def test_background_button_says_what_it_added():
    assert "Added r1 to r8; 8 under way." in asyncio.run(handlers_over(ScriptedService()).add(VISITOR))


def test_burst_button_says_that_the_others_follow():
    assert "Added r1; 5 more follow once" in asyncio.run(handlers_over(ScriptedService()).burst(VISITOR))


def test_burst_button_says_when_nothing_will_be_shared():
    service = ScriptedService(EngineConfig(num_blocks=100, enable_prefix_caching=False))
    assert "Nothing is shared: the prefix cache is off." in asyncio.run(handlers_over(service).burst(VISITOR))


def test_burst_button_shows_a_refusal():
    service = ScriptedService()
    service.refusal = EngineStoppedError("the engine is not loaded")
    assert "the engine is not loaded" in asyncio.run(handlers_over(service).burst(VISITOR))


def test_preempt_button_takes_the_visitors_own_answer_before_any_other():
    service = ScriptedService()
    handlers = handlers_over(service)
    asyncio.run(handlers.add(VISITOR))
    handlers.turns.start("tab-1").request_id = "r9"
    handlers.turns.start("tab-2").request_id = "r10"
    service.record(*(request_state(f"r{number}") for number in (1, 2, 9, 10)))
    said = asyncio.run(handlers.preempt(VISITOR))
    assert service.preempted == ["r9"]
    assert "r9 has to make room" in said


def test_preempt_button_takes_the_newest_background_request_that_runs():
    service = ScriptedService()
    handlers = handlers_over(service)
    asyncio.run(handlers.add(VISITOR))
    handlers.turns.start("tab-1").request_id = "r9"
    running = [request_state(f"r{number}") for number in (1, 2)]
    service.record(*running, request_state("r3", RequestStatus.WAITING), request_state("r9", RequestStatus.WAITING))
    asyncio.run(handlers.preempt(VISITOR))
    assert service.preempted == ["r2"]


def test_preempt_button_leaves_other_visitors_alone():
    service = ScriptedService()
    handlers = handlers_over(service)
    handlers.turns.start("tab-2").request_id = "r1"
    service.record(request_state("r1"))
    assert "Nothing of yours runs." in asyncio.run(handlers.preempt(VISITOR))
    assert service.preempted == []


def test_preempt_button_finds_a_request_by_any_of_its_answers():
    service = ScriptedService()
    handlers = handlers_over(service)
    handlers.turns.start("tab-1").request_id = "r1"
    service.record(request_state("r1.2"))
    asyncio.run(handlers.preempt(VISITOR))
    assert service.preempted == ["r1"]


def test_added_requests_are_drafted_as_the_visitor_set():
    service = ScriptedService()
    drafting = SpeculationParams(method="ngram", num_speculative_tokens=6)
    form = form_values(SamplingParams(), drafting)
    handlers = handlers_over(service)
    asyncio.run(handlers.add(VISITOR, *form))
    asyncio.run(handlers.burst(VISITOR, *form))
    service.token("r9", "x", 1)  # the others of the burst follow
    assert len(service.speculation) == 14
    assert set(service.speculation.values()) == {drafting}


def test_added_requests_are_refused_with_the_reason_where_the_form_is_wrong():
    service = ScriptedService()
    form = form_values(SamplingParams(), SpeculationParams(method="ngram"))
    form[FIELDS.index("num_speculative_tokens")] = 40
    assert "num_speculative_tokens=40 is not valid" in asyncio.run(handlers_over(service).add(VISITOR, *form))
    assert service.prompts == {}
