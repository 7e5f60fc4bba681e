"""Sliding windows: blocks behind the window are given back, in each group of layers by itself."""

from tests.engine.simulation import Simulation, decisions
from workbench.engine.block_pool import BlockPool
from workbench.engine.block_tables import NO_BLOCK
from workbench.engine.kv_cache_manager import KVCacheManager
from workbench.engine.room import Demand
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
        assert all(t.source_id != NO_BLOCK for t in swapped)
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


def filled(kv, name, num_tokens, token_ids=None):
    """Compute the first tokens of a context in one step."""
    tokens = token_ids or range(num_tokens)
    assert kv.begin(name, Demand(num_tokens), kv.match(name, tokens))
    kv.commit(name, num_tokens, num_tokens - kv.match(name, tokens).num_known_tokens, tokens)


def manager(*windows, num_blocks=30, **settings):
    return KVCacheManager(BlockPool(num_blocks, 4), windows=windows, **settings)


def test_only_the_window_goes_to_host_memory_and_comes_back():
    kv = manager(None, 6, num_swap_blocks=20)
    filled(kv, "a", 22)
    assert [len(table) for table in kv.block_tables("a")] == [6, 6]
    assert kv.num_blocks_of("a") == 6 + 2

    assert kv.swap_out("a", 22)

    assert kv.swap_space.num_blocks_of("a") == 8
    assert kv.swap_space.num_free == 12
    assert len(kv.take_transfers()) == 8
    match = kv.match("a", range(23))
    assert match.tables == ((), (NO_BLOCK,) * 4)
    assert [len(table) for table in match.host_tables] == [6, 2]
    assert kv.room(Demand(23), match).needed_blocks == 6 + 2
    assert kv.begin("a", Demand(23), match)
    assert [table[:5].count(NO_BLOCK) for table in kv.block_tables("a")] == [0, 4]
    assert len(kv.take_transfers()) == 8
    kv.check_integrity()


def test_cached_beginning_behind_the_window_is_not_needed_when_the_rest_is_swapped():
    kv = manager(6, num_swap_blocks=20, enable_prefix_caching=True)
    filled(kv, "a", 22)
    kv.swap_out("a", 22)
    kv.take_transfers()
    assert kv.pool.num_cached == 5
    kv.allocate("other", 26 * 4)  # takes the last blocks of the context away, leaves its first ones
    match = kv.match("a", range(23))
    assert match.num_known_tokens == 22
    assert match.tables == ((NO_BLOCK,) * 4,)
    assert kv.begin("a", Demand(23), match)
    kv.check_integrity()


def test_group_that_finds_least_decides():
    kv = manager(None, 6, enable_prefix_caching=True)
    filled(kv, "a", 22)
    kv.free("a")
    sliding = kv.groups[1].prefixes.match("x", range(23), "").block_ids
    kv.pool.share(sliding[3:4])
    kv.pool.set_filled(sliding[3], 1)  # its contents are gone

    match = kv.match("b", range(23))

    assert match.num_tokens == 12
    assert [len(table) for table in match.tables] == [3, 3]
    assert match.tables[1][0] == NO_BLOCK  # positions 0 … 3 are behind the window of position 12


def test_sibling_shares_what_its_window_holds_and_nothing_that_is_gone():
    narrow, wide = manager(6), manager(9)
    for kv in (narrow, wide):
        filled(kv, "a", 22)
    none = wide.match("b", range(23))

    shared = wide.match_fork("b", "a", 20, none)  # position 20 reads from 12 on, which is block 3

    assert wide.block_table("a")[:3] == (NO_BLOCK,) * 3
    assert shared.tables == ((NO_BLOCK,) * 3 + wide.block_table("a")[3:5],)
    assert shared.num_tokens == 20
    assert narrow.match_fork("b", "a", 20, none) == none  # it reads from 15 on, and block 3 is given back
    assert wide.match_fork("b", "a", 12, none) == none
