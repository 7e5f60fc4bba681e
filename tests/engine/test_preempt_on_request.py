"""Preempting a request because somebody wants to see it: on the scheduler alone, and through the door."""

from __future__ import annotations

import threading

import pytest

from tests.engine.simulation import Simulation, decisions, shares
from workbench.config import EngineConfig
from workbench.engine.messages import RequestFinished, TokenEvent
from workbench.engine.service import EngineService
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import Decision, FinishReason, Reason, RequestStatus

DEADLINE_S = 20


def test_request_is_preempted_in_the_next_step_and_resumes_in_the_one_after():
    sim = Simulation()
    request = sim.add("a", 9, max_tokens=6)
    sim.step()
    sim.scheduler.preempt("a")
    assert request.status is RequestStatus.RUNNING  # nothing changes between two steps

    plan, _ = sim.step()

    assert shares(plan) == {}
    assert decisions(plan) == [("a", "preempted", "requested"), ("a", "deferred", "preempted_this_step")]
    assert plan.explanations[0].numbers == {"free_blocks": 6, "freed_blocks": 2}
    assert plan.explanations[0].cause_request_id is None
    assert (request.status, sim.kv_cache.block_table("a")) == (RequestStatus.PREEMPTED, ())

    plan, _ = sim.step()

    assert decisions(plan)[0][:2] == ("a", "resumed")
    sim.run()
    assert request.output_token_ids == list(range(100, 106))
    assert request.num_preemptions == 1


def test_others_go_on_in_the_step_that_preempts_one():
    sim = Simulation()
    for name in "ab":
        sim.add(name, 3, max_tokens=6)
    sim.step()
    sim.scheduler.preempt("a")

    assert shares(sim.step()[0]) == {"b": 1}
    assert shares(sim.step()[0]) == {"a": 4, "b": 1}


def test_context_is_kept_in_host_memory_in_the_mode_swap():
    sim = Simulation(preemption_mode="swap", num_swap_blocks=8)
    request = sim.add("a", 9, max_tokens=4)
    sim.step()
    sim.scheduler.preempt("a")

    plan, _ = sim.step()

    assert request.status is RequestStatus.SWAPPED
    assert plan.explanations[0].numbers["swapped_blocks"] == 2
    sim.run()
    assert request.output_token_ids == [100, 101, 102, 103]


def test_whole_family_is_preempted_by_its_name_and_one_answer_by_its_own():
    sim = Simulation()
    sim.add("a", 9, max_tokens=6, n=2)
    sim.step()
    sim.step()
    sim.scheduler.preempt("a.1")
    assert [d for d in decisions(sim.step()[0]) if d[1] == "preempted"] == [("a.1", "preempted", "requested")]
    sim.step()
    sim.scheduler.preempt("a")

    plan, _ = sim.step()

    preempted = [e for e in plan.explanations if e.decision is Decision.PREEMPTED]
    assert sorted(e.request_id for e in preempted) == ["a", "a.1"]
    assert {e.reason for e in preempted} == {Reason.REQUESTED}
    sim.run()
    assert all(len(each.output_token_ids) == 6 for each in sim.requests.values())


def test_beams_are_preempted_together():
    sim = Simulation(num_blocks=20)
    undisturbed = Simulation(num_blocks=20)
    for each in (sim, undisturbed):
        each.add("a", 9, max_tokens=6, use_beam_search=True, beam_width=2)
        each.step()
        each.step()
    sim.scheduler.preempt("a")

    plan, _ = sim.step()

    assert [d[2] for d in decisions(plan) if d[1] == "preempted"] == ["requested", "requested"]
    assert not sim.scheduler.running
    sim.run()
    undisturbed.run()
    assert sim.requests["a"].output_token_ids == undisturbed.requests["a"].output_token_ids


def test_request_that_does_not_run_is_left_alone_and_so_is_an_unknown_one():
    sim = Simulation(max_num_seqs=1)
    sim.add("a", 3, max_tokens=2)
    waiting = sim.add("b", 3, max_tokens=2)
    sim.step()
    sim.scheduler.preempt("b")
    sim.scheduler.preempt("unknown")

    assert shares(sim.step()[0]) == {"a": 1}
    sim.run()
    assert waiting.num_preemptions == 0  # the wish is not kept for later


@pytest.fixture
def service(tiny_model_path):
    engine = EngineService(EngineConfig(model=str(tiny_model_path), num_blocks=32, check_integrity=True))
    engine.start()
    engine.wait_ready(DEADLINE_S)
    yield engine
    engine.shutdown()


def test_door_preempts_a_running_request_whose_tokens_stay_the_same(service):
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)

    def answer(is_preempted):
        tokens: list[int] = []
        finished: list[RequestFinished] = []
        ended = threading.Event()

        def listen(event):
            if isinstance(event, TokenEvent):
                tokens.extend(event.token_ids)
                if is_preempted and len(tokens) == 5:  # in the engine thread: it is running for certain
                    service.preempt("mine")
            elif isinstance(event, RequestFinished):
                finished.append(event)
                ended.set()

        service.submit("hello there", params, listen, request_id="mine")
        assert ended.wait(DEADLINE_S)
        return tokens, finished[0]

    alone, first = answer(is_preempted=False)
    tokens, finished = answer(is_preempted=True)
    service.preempt("mine")  # it has ended: nothing happens

    assert (first.metrics.num_preemptions, finished.metrics.num_preemptions) == (0, 1)
    assert finished.finish_reason is FinishReason.LENGTH
    assert tokens == alone
    reasons = [e.reason for record in service.recorder.since(-1) for e in record.explanations]
    assert Reason.REQUESTED in reasons
