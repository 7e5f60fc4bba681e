"""Prefix caching over pool, manager and scheduler; every step's reads are checked by `simulation.Memory`."""

import pytest

from tests.engine.simulation import Simulation, shares
from workbench.engine.block_key import BlockKey
from workbench.engine.block_pool import BlockPool
from workbench.engine.context_lookup import PrefixMatch
from workbench.engine.kv_cache_manager import KVCacheManager
from workbench.engine.room import Demand
from workbench.telemetry.records import BlockStatus, CacheMiss


def cached(num_blocks=8, **settings):
    return Simulation(num_blocks=num_blocks, block_size=8, enable_prefix_caching=True, **settings)


def test_second_request_computes_only_what_the_first_one_did_not():
    sim = cached()
    sim.add("a", 20, max_tokens=1)
    sim.run()
    b = sim.add("b", 20, max_tokens=1)

    assert [shares(plan) for plan in sim.run()] == [{"b": 4}]
    assert (b.num_cached_prompt_tokens, b.cache) == (16, PrefixMatch(((0, 1),), 16, num_cached_blocks=2))
    assert b.output_token_ids == [100]


def test_blocks_are_shared_while_the_first_request_still_runs():
    sim = cached()
    sim.add("a", 20, max_tokens=8)
    sim.step()
    sim.add("b", 20, max_tokens=8)
    sim.step()

    assert sim.kv_cache.block_table("a")[:2] == sim.kv_cache.block_table("b")[:2] == (0, 1)
    assert [sim.pool.ref_count(block) for block in range(4)] == [2, 2, 1, 1]
    assert sim.kv_cache.block_state(1).request_ids == ("a", "b")
    sim.run()
    assert sim.kv_cache.num_free_blocks == 8


def test_generated_blocks_are_found_by_the_next_turn_of_a_conversation():
    sim = cached()
    first = sim.add("a", 10, max_tokens=10)
    sim.run()
    history = [*range(1, 11), *first.output_token_ids]
    second = sim.add("b", [*history, 7, 8, 9], max_tokens=1)
    sim.run()

    # 20 tokens, of which the last was never computed: two full blocks.
    assert second.num_cached_prompt_tokens == 16


def test_freed_blocks_stay_cached_and_the_pool_says_so():
    sim = cached()
    sim.add("a", 20, max_tokens=1)
    sim.run()

    assert [sim.pool.status(block) for block in range(4)] == [
        BlockStatus.CACHED,
        BlockStatus.CACHED,
        BlockStatus.FREE,
        BlockStatus.FREE,
    ]
    assert (sim.pool.num_cached, sim.pool.num_free, sim.pool.num_active) == (2, 8, 0)
    assert sim.pool.key_of(1) == BlockKey(BlockKey(None, tuple(range(1, 9)), (0, "")), tuple(range(9, 17)), (0, ""))
    assert [sim.kv_cache.block_state(block).logical_index for block in range(4)] == [0, 1, -1, -1]


def test_eviction_takes_the_least_recently_used_first_and_of_a_sequence_its_tail():
    sim = cached(num_blocks=6)
    sim.add("old", [1] * 25, max_tokens=1)  # three full blocks
    sim.run()
    sim.add("new", [2] * 17, max_tokens=1)  # two
    sim.run()
    assert sim.pool.num_cached == 5
    sim.add("other", [3] * 17, max_tokens=1)  # takes the empty block and two cached ones
    sim.run()

    assert len(sim.kv_cache.match("x", [1] * 25).tables[0]) == 1
    assert len(sim.kv_cache.match("y", [2] * 25).tables[0]) == 2
    assert sim.kv_cache.match("z", [1] * 25).miss is CacheMiss.EVICTED


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_trap_08_a_prompt_of_whole_blocks_sent_twice_still_computes_a_token(num_blocks):
    sim = cached()
    sim.add("a", 8 * num_blocks, max_tokens=2)
    sim.run()
    b = sim.add("b", 8 * num_blocks, max_tokens=2)
    plans = sim.run()

    assert shares(plans[0]) == {"b": 8}
    assert b.num_cached_prompt_tokens == 8 * (num_blocks - 1)
    assert b.output_token_ids == [100, 101]


def test_trap_09_a_preempted_request_hits_its_own_blocks_and_counts_tokens_after_that():
    sim = cached(num_blocks=5, budget=64)
    sim.add("a", 15, max_tokens=12)
    b = sim.add("b", [50 + i for i in range(15)], max_tokens=12)
    for _ in range(20):
        plan, _ = sim.step()
        resumed = [e for e in plan.explanations if e.decision == "resumed"]
        if resumed:
            break
    (explanation,) = resumed

    assert explanation.request_id == "b"
    # Its blocks were cached when it was preempted, and "a" evicted the tail of them.
    assert b.cache is not None
    assert explanation.numbers["cached_tokens"] == b.cache.num_tokens > 0
    assert explanation.numbers["tokens"] == shares(plan)["b"]
    sim.run()
    assert b.output_token_ids == [100 + i for i in range(12)]


def test_trap_11_a_constant_hash_confuses_nobody():
    sim = cached(num_blocks=16, hash_function=lambda _value: 0)
    sim.add("a", [1] * 20, max_tokens=2)
    sim.run()
    b = sim.add("b", [2] * 20, max_tokens=2)
    sim.run()
    again = sim.add("c", [1] * 20, max_tokens=2)
    sim.run()

    assert b.num_cached_prompt_tokens == 0
    assert again.num_cached_prompt_tokens == 16


def test_trap_12_prompt_logprobs_bypass_the_cache():
    sim = cached()
    sim.add("a", 20, max_tokens=1)
    sim.run()
    b = sim.add("b", 20, max_tokens=1, prompt_logprobs=1)

    assert shares(sim.plan()) == {"b": 20}
    assert b.cache == PrefixMatch(miss=CacheMiss.BYPASSED)


def test_a_miss_says_at_which_token_the_contexts_part():
    sim = cached()
    sim.add("a", 24, max_tokens=1)
    sim.run()
    tokens = list(range(1, 25))
    tokens[13] = 99

    match = sim.kv_cache.match("b", tokens)
    assert (match.num_tokens, match.miss, match.differs_at) == (8, CacheMiss.DIFFERS, 13)
    assert sim.kv_cache.match("c", [5] * 24).differs_at == 0


def test_a_prompt_that_is_shorter_than_a_block_has_nothing_to_share():
    sim = cached()
    assert sim.kv_cache.match("a", list(range(8))).miss is CacheMiss.SHORTER_THAN_BLOCK


def test_without_the_cache_nothing_is_kept_and_the_miss_says_so():
    sim = Simulation()
    sim.add("a", 20, max_tokens=1)
    sim.run()
    b = sim.add("b", 20, max_tokens=1)
    sim.step()

    assert sim.pool.num_cached == 0
    assert b.cache == PrefixMatch(miss=CacheMiss.DISABLED)


def test_requests_with_different_salts_share_nothing():
    sim = cached()
    sim.add("a", 20, max_tokens=1, cache_salt="alice")
    sim.run()
    b = sim.add("b", 20, max_tokens=1, cache_salt="bob")
    sim.run()
    c = sim.add("c", 20, max_tokens=1, cache_salt="alice")
    sim.run()

    assert (b.num_cached_prompt_tokens, c.num_cached_prompt_tokens) == (0, 16)


def test_managers_with_other_extra_keys_name_blocks_differently():
    pool = BlockPool(4, 8)
    plain = KVCacheManager(pool, enable_prefix_caching=True)
    assert plain.allocate("a", 8)
    plain.commit("a", 8, 8, range(8))
    adapted = KVCacheManager(pool, enable_prefix_caching=True, extra_keys=("adapter",))

    assert plain.match("b", range(9)).num_tokens == 8
    assert adapted.match("b", range(9)).num_tokens == 0


def test_a_hit_counts_its_cached_blocks_as_taken_when_room_is_looked_for():
    """Three free blocks of which two are the hit: one is left for what is new, so 25 tokens do not fit."""
    sim = cached(num_blocks=4)
    sim.add("a", 17, max_tokens=1)
    sim.run()
    sim.add("holder", [9] * 7, max_tokens=8)
    sim.step()
    match = sim.kv_cache.match("b", list(range(1, 34)))
    assert (len(match.tables[0]), match.num_cached_blocks, sim.kv_cache.num_free_blocks) == (2, 2, 3)

    assert sim.kv_cache.room(Demand(24), match).is_enough
    assert not sim.kv_cache.room(Demand(25), match).is_enough
    assert not sim.kv_cache.begin("b", Demand(25), match)
    assert sim.pool.num_cached == 2
    sim.kv_cache.check_integrity()


def test_two_requests_that_compute_the_same_block_at_once_keep_their_own():
    sim = cached()
    sim.add("a", 20, max_tokens=4)
    sim.add("b", 20, max_tokens=4)
    sim.step()

    assert not set(sim.kv_cache.block_table("a")) & set(sim.kv_cache.block_table("b"))
    sim.run()
    assert sim.pool.num_cached == 2, "the second copy is not kept"
    assert sim.kv_cache.num_free_blocks == 8


def test_truncation_into_a_known_block_forgets_it():
    kv = KVCacheManager(BlockPool(4, 8), enable_prefix_caching=True)
    assert kv.allocate("a", 16)
    kv.commit("a", 16, 16, range(16))
    kv.truncate("a", 12)

    assert kv.match("b", range(17)).num_tokens == 8
    kv.check_integrity()
    kv.free("a")
    assert (kv.pool.num_cached, kv.pool.num_free) == (1, 4)


def test_the_step_counts_looked_up_and_cached_tokens():
    sim = cached()
    sim.add("a", 20, max_tokens=1)
    plan, _ = sim.step()
    assert (plan.num_looked_up_tokens, plan.num_cached_tokens) == (20, 0)
    sim.add("b", 20, max_tokens=1)
    plan, _ = sim.step()
    assert (plan.num_looked_up_tokens, plan.num_cached_tokens) == (20, 16)


def test_evicted_keys_are_remembered_in_bounded_number():
    pool = BlockPool(1, 2)
    keys = [BlockKey(None, (n, n)) for n in range(10)]
    for key in keys:
        pool.allocate(1)
        pool.set_filled(0, 2)
        pool.remember(0, key)
        pool.free([0])
    pool.allocate(1)

    assert [pool.was_evicted(key) for key in keys] == [False] * 6 + [True] * 4
