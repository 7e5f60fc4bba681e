"""Contexts that move to host memory and back, and what is chosen when a context has to make room."""

import pytest

from tests.engine.simulation import Simulation, decisions, shares
from workbench.engine.policies.priority import Priority
from workbench.telemetry.records import BlockTransfer, Decision, Reason, RequestStatus, TransferKind


def crowded(**settings):
    """Two requests that fit only until they grow: the second has to make room for the first."""
    sim = Simulation(num_blocks=5, block_size=8, **settings)
    for name in "ab":
        sim.add(name, 15, max_tokens=12)
    sim.step()
    sim.step()
    return sim


def preemption(plans):
    return next(e for plan in plans for e in plan.explanations if e.decision is Decision.PREEMPTED)


def test_swapped_context_comes_back_and_only_its_last_token_is_computed():
    sim = crowded(preemption_mode="swap", num_swap_blocks=4)
    b = sim.requests["b"]

    plan, _ = sim.step()

    assert plan.transfers == tuple(BlockTransfer(TransferKind.SWAP_OUT, 2 + i, i, "b") for i in range(2))
    assert preemption([plan]).numbers == {
        "needed_blocks": 1,
        "free_blocks": 0,
        "freed_blocks": 2,
        "swapped_blocks": 2,
    }
    assert (b.status, b.num_computed_tokens) == (RequestStatus.SWAPPED, 0)
    assert sim.kv_cache.swap_space.num_blocks_of("b") == 2
    computed = len(sim.computed["b"])
    plans = sim.run()
    back = next(
        plan for plan in plans if any(e.request_id == "b" and e.decision is Decision.RESUMED for e in plan.explanations)
    )
    assert shares(back)["b"] == 1
    assert [(t.kind, t.source_id) for t in back.transfers] == [(TransferKind.SWAP_IN, 0), (TransferKind.SWAP_IN, 1)]
    assert all(len(tokens) == 1 for tokens in sim.computed["b"][computed:])
    assert b.output_token_ids == list(range(100, 112))
    assert sim.kv_cache.swap_space.num_free == 4


def test_swap_space_without_room_means_computing_again():
    sim = crowded(preemption_mode="swap", num_swap_blocks=1)
    plans = sim.run()
    assert preemption(plans).numbers["free_swap_blocks"] == 1
    assert not any(plan.transfers for plan in plans)
    assert sim.requests["b"].output_token_ids == list(range(100, 112))


def test_auto_takes_the_cheaper_way_and_says_what_it_compared():
    for token_s, expected in ((1e-3, "swap"), (1e-6, "recompute")):
        sim = Simulation(num_blocks=5, block_size=8, preemption_mode="auto", num_swap_blocks=8)
        sim.scheduler.preemption.block_transfer_s = 1e-3
        sim.scheduler.preemption.token_compute_s = token_s
        for name in "ab":
            sim.add(name, 15, max_tokens=12)
        plans = sim.run()
        numbers = preemption(plans).numbers
        assert ("swapped_blocks" in numbers) == (expected == "swap")
        assert numbers["swap_us"] == 4000
        assert numbers["recompute_us"] in (round(16e6 * token_s), round(15e6 * token_s))
        assert any(plan.transfers for plan in plans) == (expected == "swap")


def test_auto_counts_shared_blocks_as_not_lost():
    sim = Simulation(num_blocks=8, block_size=8, preemption_mode="auto", num_swap_blocks=8, enable_prefix_caching=True)
    sim.scheduler.preemption.block_transfer_s, sim.scheduler.preemption.token_compute_s = 1e-3, 1e-3
    sim.add("a", 24, n=2, max_tokens=30)
    plans = sim.run()
    # 24 tokens lie in blocks that the other answer holds, so only those behind them would be lost.
    assert preemption(plans).numbers["recompute_us"] < 24_000


def test_cost_of_a_token_is_learned_from_steps_that_prefill():
    costs = Simulation(preemption_mode="auto").scheduler.preemption
    known = [costs.token_compute_s]
    for num_tokens, num_prefill, seconds in ((4, 0, 1.0), (100, 98, 1.0), (100, 100, 2.0), (0, 0, 5.0)):
        costs.observe(num_tokens, num_prefill, seconds)
        known.append(costs.token_compute_s)
    assert known == [None, None, 0.01, pytest.approx(0.011), pytest.approx(0.011)]


def test_abort_of_a_swapped_request_empties_the_swap_space():
    sim = crowded(preemption_mode="swap", num_swap_blocks=4)
    sim.step()
    assert sim.requests["b"].status is RequestStatus.SWAPPED
    sim.scheduler.abort("b")
    assert sim.kv_cache.swap_space.num_free == 4
    sim.run()


def test_swapped_context_that_is_lost_is_computed_again():
    sim = crowded(preemption_mode="swap", num_swap_blocks=4)
    sim.step()
    sim.scheduler.lose_swapped("b")
    assert sim.requests["b"].status is RequestStatus.PREEMPTED
    plans = sim.run()
    assert not any(plan.transfers for plan in plans)
    assert sim.requests["b"].output_token_ids == list(range(100, 112))


def test_what_is_cached_still_need_not_be_swapped_in():
    sim = crowded(preemption_mode="swap", num_swap_blocks=4, enable_prefix_caching=True)
    sim.add("c", 15, max_tokens=12)  # begins like the others, so it keeps their first block in use
    plans = sim.run()
    kinds = [t.kind for plan in plans for t in plan.transfers]
    assert kinds.count(TransferKind.SWAP_IN) < kinds.count(TransferKind.SWAP_OUT)
    assert sim.requests["b"].output_token_ids == list(range(100, 112))


def test_urgent_request_swaps_out_a_less_urgent_one():
    sim = Simulation(num_blocks=4, block_size=8, preemption_mode="swap", num_swap_blocks=8, policy=Priority())
    low = sim.add("low", 20, priority=5, max_tokens=6)
    sim.step()
    sim.add("urgent", 20, priority=0, max_tokens=2)

    plan, _ = sim.step()

    assert ("low", Decision.PREEMPTED.value, Reason.MORE_URGENT.value) in decisions(plan)
    assert low.status is RequestStatus.SWAPPED
    sim.run()
    assert low.output_token_ids == list(range(100, 106))
