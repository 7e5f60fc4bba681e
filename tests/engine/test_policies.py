"""Scheduling and admission policies over the real scheduler and memory manager."""

import pytest

from tests.engine.simulation import Simulation, decisions, shares
from workbench.config import ADMISSION_POLICIES, SCHEDULING_POLICIES
from workbench.engine.admission import MAX_OVERTAKEN
from workbench.engine.policies import POLICIES
from workbench.engine.policies.admission import ADMISSIONS, BestFit, FirstFit, Strict
from workbench.engine.policies.priority import Priority
from workbench.engine.policies.sjf import TOKENS_PER_ARRIVAL, ShortestJobFirst
from workbench.telemetry.records import Decision, Reason, RequestStatus


def test_every_policy_that_can_be_configured_exists():
    assert tuple(POLICIES) == SCHEDULING_POLICIES
    assert tuple(ADMISSIONS) == ADMISSION_POLICIES


# ------------------------------------------------------------------------------------ priority


def test_priority_admits_the_lowest_number_first_and_equals_by_arrival():
    sim = Simulation(policy=Priority(), max_num_seqs=1)
    for name, priority in (("late", 2), ("first", 1), ("second", 1), ("urgent", -3)):
        sim.add(name, 3, priority=priority, max_tokens=1)

    assert [list(shares(plan)) for plan in sim.run()] == [["urgent"], ["first"], ["second"], ["late"]]


def test_priority_gives_the_budget_to_the_most_urgent_running_request():
    sim = Simulation(policy=Priority(), budget=8)
    sim.add("low", 3, priority=5)
    sim.step()
    sim.add("high", 30, priority=1)
    assert shares(sim.step()[0]) == {"low": 1, "high": 7}

    plan, _ = sim.step()
    assert shares(plan) == {"high": 8}
    assert ("low", "deferred", "token_budget") in decisions(plan)


def test_trap_05_an_urgent_request_takes_the_seat_of_a_strictly_lower_one():
    sim = Simulation(policy=Priority(), max_num_seqs=2)
    low, same = sim.add("low", 5, priority=7), sim.add("same", 5, priority=1)
    sim.step()
    sim.add("urgent", 5, priority=1, max_tokens=2)
    plan, _ = sim.step()

    assert list(shares(plan)) == ["same", "urgent"]
    assert ("low", "preempted", "more_urgent") in decisions(plan)
    assert (low.status, same.status) == (RequestStatus.PREEMPTED, RequestStatus.RUNNING)
    (explanation,) = [e for e in plan.explanations if e.reason == "more_urgent"]
    assert explanation.cause_request_id == "urgent"
    assert (explanation.numbers["priority"], explanation.numbers["urgent_priority"]) == (7, 1)
    sim.run()
    assert low.output_token_ids == [100 + i for i in range(16)]


def test_equal_priorities_never_displace_each_other():
    sim = Simulation(policy=Priority(), max_num_seqs=1)
    sim.add("a", 5, priority=1)
    sim.step()
    sim.add("b", 5, priority=1)

    assert ("b", "deferred", "max_num_seqs") in decisions(sim.step()[0])


def test_an_urgent_request_takes_blocks_from_lower_ones_only_when_that_is_enough():
    sim = Simulation(policy=Priority(), num_blocks=6, block_size=8)
    requests = sim.add("low", 9, priority=5), sim.add("high", 9, priority=1)
    sim.step()
    sim.add("huge", 40, priority=2, max_tokens=1)  # needs five blocks; two are free, two would get free
    assert ("huge", "deferred", "no_free_blocks") in decisions(sim.step()[0])
    assert [request.status.value for request in requests] == ["running", "running"]

    sim.add("urgent", 25, priority=1, max_tokens=1)  # needs four
    plan, _ = sim.step()
    assert [request.status.value for request in requests] == ["preempted", "running"]
    assert "urgent" in shares(plan)
    sim.run()
    assert sim.kv_cache.num_free_blocks == 6


def test_trap_03_a_victim_that_was_scheduled_in_this_step_gives_back_budget_and_blocks():
    """The running one is served first and takes one token of six; the urgent one needs all six of them."""
    sim = Simulation(policy=Priority(), max_num_seqs=1, budget=6, num_blocks=4, block_size=8)
    low = sim.add("low", 5, priority=5)
    sim.step()
    sim.add("urgent", 6, priority=0, max_tokens=1)
    plan, _ = sim.step()

    assert shares(plan) == {"urgent": 6}
    assert decisions(plan)[0] == ("low", "preempted", "more_urgent")
    assert sim.kv_cache.num_blocks_of("low") == 0
    sim.run()
    assert low.output_token_ids == [100 + i for i in range(16)]


# ----------------------------------------------------------------------------------------- sjf


def test_sjf_runs_the_shortest_first():
    sim = Simulation(policy=ShortestJobFirst(), max_num_seqs=1)
    sim.add("running", 3, max_tokens=2)
    sim.step()
    for name, max_tokens in (("long", 100), ("short", 2), ("middle", 40)):
        sim.add(name, 3, max_tokens=max_tokens)

    order = list(dict.fromkeys(name for plan in sim.run() for name in shares(plan)))
    assert order == ["running", "short", "middle", "long"]


@pytest.mark.parametrize("length", [40, 200])
def test_sjf_ageing_bounds_how_many_later_requests_overtake_a_long_one(length):
    """A flood of jobs of one token, one new in every step, behind one long job on the only seat."""
    sim = Simulation(policy=ShortestJobFirst(), max_num_seqs=1, num_blocks=64)
    sim.add("first", 1, max_tokens=1)
    long_one = sim.add("long", 1, max_tokens=length)
    overtook = 0
    while long_one.status is RequestStatus.WAITING:
        sim.add(f"s{overtook}", 1, max_tokens=1)
        sim.step()
        overtook += 1
        assert overtook < 100

    # The first step serves "first"; from then on each step serves one of the short ones, until their
    # arrivals are so much later that being short no longer makes up for it.
    assert overtook - 2 <= (1 + length) / TOKENS_PER_ARRIVAL


# ----------------------------------------------------------------------------------- admission


def crowd(admission):
    """One request holds three of eight blocks; a head that needs seven waits before smaller ones."""
    sim = Simulation(num_blocks=8, block_size=8, admission=admission)
    sim.add("holder", 20, max_tokens=4)
    sim.step()
    sim.add("head", 50, max_tokens=1)
    for name, prompt in (("two", 10), ("five", 35), ("four", 30)):
        sim.add(name, prompt, max_tokens=1)
    return sim


@pytest.mark.parametrize(("admission", "admitted"), [(Strict(), []), (FirstFit(), ["two"]), (BestFit(), ["five"])])
def test_trap_07_smaller_requests_pass_a_head_that_does_not_fit(admission, admitted):
    plan, _ = crowd(admission).step()

    passed = [e.request_id for e in plan.explanations if e.decision == "admitted"]
    assert passed[:1] == admitted
    assert ("head", "deferred", "no_free_blocks") in decisions(plan)


def test_who_passes_the_head_is_explained_with_the_number_of_overtaken():
    plan, _ = crowd(BestFit()).step()

    explanation = next(e for e in plan.explanations if e.request_id == "five")
    assert (explanation.reason, explanation.numbers["overtaken"]) == ("past_head", 2)


@pytest.mark.parametrize("admission", [FirstFit(), BestFit()])
def test_trap_07_nobody_is_overtaken_more_often_than_the_bound(admission):
    """A flood of small requests behind one that needs the whole pool: in the end everyone waits for it."""
    sim = Simulation(num_blocks=8, block_size=8, admission=admission, max_num_seqs=32)
    sim.add("holder", 1, max_tokens=3)
    sim.step()
    head = sim.add("head", 60, max_tokens=1)
    most = 0
    for number in range(200):
        if head.status is not RequestStatus.WAITING:
            break
        sim.add(f"s{number}", 1, max_tokens=3)
        sim.step()
        most = max(most, head.num_overtaken)

    assert head.status is not RequestStatus.WAITING
    assert most == MAX_OVERTAKEN


def test_admission_policies_choose_by_need_and_order():
    needed = [9, 3, 5, 5, 1]
    assert Strict().choose(needed, 6) is None
    assert FirstFit().choose(needed, 6) == 1
    assert BestFit().choose(needed, 6) == 2
    assert BestFit().choose(needed, 0) is None


def test_urgent_request_gets_tokens_of_the_step_from_a_less_urgent_prompt():
    sim = Simulation(num_blocks=60, block_size=8, budget=16, policy=Priority())
    sim.add("prompt", 100, priority=5, max_tokens=2)
    sim.add("writer", 3, priority=5, max_tokens=30)
    for _ in range(3):
        sim.step()
    sim.add("urgent", 10, priority=0, max_tokens=2)

    plan, _ = sim.step()

    assert shares(plan) == {"prompt": 6, "urgent": 10}
    taken = next(e for e in plan.explanations if e.request_id == "prompt" and e.reason is Reason.MORE_URGENT)
    assert taken.decision is Decision.CHUNKED
    assert taken.numbers == {"tokens": 6, "wanted_tokens": 16, "priority": 5, "urgent_priority": 0}
    sim.run()
    assert sim.requests["prompt"].output_token_ids == [100, 101]


def test_equal_priority_takes_no_tokens_from_anyone():
    sim = Simulation(num_blocks=60, block_size=8, budget=16, policy=Priority())
    sim.add("prompt", 100, priority=5, max_tokens=2)
    sim.step()
    sim.add("later", 10, priority=5, max_tokens=2)
    assert shares(sim.step()[0]) == {"prompt": 16}
