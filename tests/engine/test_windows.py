"""Sliding windows: blocks behind the window are given back, in each group of layers by itself."""

from tests.engine.simulation import Simulation, decisions
from workbench.engine.block_tables import NO_BLOCK
from workbench.engine.kv_cache_manager import Demand
from workbench.telemetry.records import FinishReason, TransferKind


def windowed(*windows, num_blocks=8, budget=8, **settings):
    settings = {"block_size": 4, "max_model_len": 400, **settings}
    return Simulation(num_blocks=num_blocks, budget=budget, windows=windows, **settings)


def test_blocks_behind_the_window_are_given_back_as_the_context_grows():
    sim = windowed(6)
    sim.add("a", 8, max_tokens=20)
    sim.step()
    # Eight tokens are computed; the next one, at position 8, attends to 3 … 8.
    assert sim.kv_cache.block_table("a") == (0, 1)
    sim.step()
    sim.step()  # position 10 attends to 5 … 10: block 0 ends at position 3
    assert sim.kv_cache.block_table("a") == (NO_BLOCK, 1, 2)
    held = []
    while sim.scheduler.has_work:
        held.append(sim.kv_cache.num_blocks_of("a"))
        sim.step()
    assert max(held) == 2
    assert sim.requests["a"].num_output_tokens == 20
    assert sim.pool.num_free == 8


def test_context_longer_than_the_pool_is_served_within_the_window():
    sim = windowed(6, num_blocks=5)
    sim.add("a", 60, max_tokens=100)
    plans = sim.run()
    assert sim.requests["a"].finish_reason is FinishReason.LENGTH
    assert not any("preempted" in decision for plan in plans for _, decision, _ in decisions(plan))


def test_layers_that_attend_to_everything_keep_their_blocks():
    sim = windowed(None, 6, num_blocks=30)
    sim.add("a", 20, max_tokens=12)
    sim.step()
    assert sim.kv_cache.blocks_for(Demand(32, step_tokens=8)) == 8 + 5
    while sim.scheduler.requests["a"].num_output_tokens < 11:
        sim.step()
    full, sliding = sim.kv_cache.block_tables("a")
    assert NO_BLOCK not in full
    assert sliding[:6] == (NO_BLOCK,) * 6 and NO_BLOCK not in sliding[6:]
    assert not set(full) & set(sliding)
    sim.run()
    assert sim.pool.num_free == 30


def test_context_that_outgrows_the_layers_without_a_window_ends_with_the_numbers():
    sim = windowed(None, 6, num_blocks=12)
    sim.add("a", 8, max_tokens=100)
    sim.run()
    assert "whole pool has 12" in str(sim.requests["a"].error)


def test_preempted_context_comes_back_within_the_window():
    for mode in ("recompute", "swap"):
        sim = windowed(None, 6, num_blocks=36, preemption_mode=mode, num_swap_blocks=40)
        for name in ("a", "b", "c"):
            sim.add(name, 30, max_tokens=20)
        plans = sim.run()
        assert any("preempted" in decision for plan in plans for _, decision, _ in decisions(plan)), mode
        swapped = [t for plan in plans for t in plan.transfers if t.kind is TransferKind.SWAP_OUT]
        assert bool(swapped) == (mode == "swap")
        assert all(r.output_token_ids == list(range(100, 120)) for r in sim.requests.values())


def test_cached_beginning_is_found_and_only_its_window_is_held():
    sim = windowed(6, num_blocks=30, enable_prefix_caching=True)
    sim.add("a", 24, max_tokens=2)
    sim.run()
    b = sim.add("b", 27, max_tokens=2)
    sim.step()
    assert b.num_cached_prompt_tokens == 24
    assert sim.kv_cache.block_table("b")[:4] == (NO_BLOCK,) * 4
    sim.run()
    assert b.output_token_ids == [100, 101]


def test_answers_part_within_the_window():
    sim = windowed(None, 6, num_blocks=40, budget=32)
    sim.add("a", 18, n=3, max_tokens=12)
    plans = sim.run()
    copies = [t for plan in plans for t in plan.transfers]
    assert len(copies) == 2 * 2  # in each group of layers two of three copy the last block
    assert all(r.num_output_tokens == 12 for r in sim.requests.values())
