"""The layout of engines before paging, with its two kinds of waste."""

import pytest

from tests.engine.simulation import Simulation, decisions, shares
from workbench.engine.contiguous import best_fit, first_fit
from workbench.engine.policies.admission import FirstFit
from workbench.telemetry.records import Reason


def contiguous(num_blocks=10, **settings):
    return Simulation(num_blocks=num_blocks, block_size=8, is_contiguous=True, max_model_len=80, **settings)


def test_request_reserves_one_run_for_all_that_it_may_become():
    sim = contiguous()
    sim.add("a", 10, max_tokens=20)
    sim.add("b", 10, max_tokens=None)

    sim.step()

    assert sim.kv_cache.block_table("a") == (0, 1, 2, 3)
    assert sim.scheduler.waiting[0].request_id == "b"  # it may fill the context: 10 blocks
    assert sim.pool.num_unused_slots == 4 * 8 - 10
    sim.run()
    assert sim.pool.num_free == 10


def test_waiting_request_needs_a_run_and_not_merely_blocks():
    sim = contiguous()
    for name in "abcde":
        sim.add(name, 9, max_tokens=7 if name in "bd" else 4)
    sim.step()
    assert [sim.kv_cache.block_table(name) for name in "abcde"] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    sim.add("f", 20, max_tokens=4)
    while set("ace") & set(sim.scheduler.requests):
        sim.step()

    plan = sim.plan()

    assert sim.kv_cache.num_free_blocks == 6
    assert ("f", "deferred", "no_free_run") in decisions(plan)
    assert plan.explanations[-1].numbers == {"needed_blocks": 3, "free_blocks": 6, "longest_run": 2}
    assert sim.scheduler.external_waste_blocks == 6
    sim.finish(plan)
    sim.run()
    assert sim.requests["f"].num_output_tokens == 4


def test_paging_has_no_external_waste():
    sim = Simulation(num_blocks=2, block_size=8)
    sim.add("a", 12, max_tokens=3)
    sim.add("b", 12, max_tokens=3)
    sim.step()
    assert sim.scheduler.waiting
    assert sim.scheduler.external_waste_blocks == 0
    assert sim.pool.num_unused_slots == 4


@pytest.mark.parametrize(("place", "expected"), [(first_fit, (0, 5)), (best_fit, (8, 3))])
def test_placement_takes_the_first_or_the_tightest_run(place, expected):
    assert place([(0, 5), (8, 3), (20, 4)], 3) == expected
    assert place([(0, 5), (8, 3)], 6) is None


def test_small_request_passes_a_head_that_finds_no_run_when_it_may():
    sim = contiguous(num_blocks=6, admission=FirstFit())
    sim.add("a", 9, max_tokens=20)
    sim.add("big", 9, max_tokens=30)
    sim.add("small", 5, max_tokens=3)
    plan = sim.plan()
    assert shares(plan) == {"a": 9, "small": 5}
    assert (plan.explanations[1].request_id, plan.explanations[1].reason) == ("small", Reason.PAST_HEAD)


def test_answers_of_one_request_lie_apart_and_nothing_is_copied():
    sim = contiguous()
    sim.add("a", 12, n=2, max_tokens=4)
    plans = sim.run()
    assert shares(plans[0]) == {"a": 12, "a.1": 12}
    assert not any(plan.transfers for plan in plans)


def test_no_request_reserves_more_than_the_pool():
    sim = contiguous(num_blocks=3)
    sim.add("a", 10, max_tokens=60)
    sim.step()
    assert sim.kv_cache.block_table("a") == (0, 1, 2)
    sim.run()
    assert "whole pool has 3" in str(sim.requests["a"].error)
