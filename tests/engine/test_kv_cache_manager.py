from workbench.engine.block_pool import BlockPool
from workbench.engine.kv_cache_manager import KVCacheManager
from workbench.engine.room import Demand
from workbench.telemetry.records import BlockState, BlockStatus, BlockTransfer, TransferKind


def manager(num_blocks=6, block_size=8, **settings):
    return KVCacheManager(BlockPool(num_blocks, block_size), **settings)


def test_allocate_grows_the_table_only_at_block_boundaries():
    kv = manager()

    assert kv.allocate("a", 1)
    assert kv.block_table("a") == (0,)
    assert kv.allocate("a", 8)
    assert kv.block_table("a") == (0,)
    assert kv.allocate("a", 9)
    assert kv.block_table("a") == (0, 1)


def test_allocate_leaves_table_and_pool_unchanged_when_there_is_no_room():
    kv = manager(num_blocks=3)
    kv.allocate("a", 16)

    assert not kv.allocate("b", 17)
    assert kv.block_table("b") == ()
    assert kv.num_free_blocks == 1
    kv.check_integrity()


def test_blocks_of_interleaved_requests_keep_their_logical_order():
    kv = manager()
    kv.allocate("a", 8)
    kv.allocate("b", 8)
    kv.allocate("a", 24)

    assert kv.block_table("a") == (0, 2, 3)
    assert kv.block_table("b") == (1,)


def test_free_returns_every_block_and_is_harmless_when_repeated():
    kv = manager()
    kv.allocate("a", 20)

    assert kv.free("a") == 3
    assert kv.free("a") == 0
    assert kv.num_free_blocks == 6
    kv.check_integrity()


def test_commit_fills_the_touched_blocks_only():
    kv = manager()
    kv.allocate("a", 20)
    kv.commit("a", num_computed_tokens=10, num_new_tokens=10)
    assert [kv.pool.num_filled(b) for b in (0, 1, 2)] == [8, 2, 0]

    kv.take_changes()
    kv.commit("a", num_computed_tokens=11, num_new_tokens=1)
    assert [change.block_id for change in kv.take_changes()] == [1]


def test_truncate_gives_back_the_blocks_behind_and_the_slots_in_the_last_one():
    kv = manager()
    kv.allocate("a", 24)
    kv.commit("a", 24, 24)

    kv.truncate("a", 10)

    assert kv.block_table("a") == (0, 1)
    assert [kv.pool.num_filled(b) for b in (0, 1)] == [8, 2]
    kv.check_integrity()


def test_truncate_to_a_block_boundary_keeps_the_last_block_full():
    kv = manager()
    kv.allocate("a", 24)
    kv.commit("a", 24, 24)

    kv.truncate("a", 16)

    assert kv.block_table("a") == (0, 1)
    assert [kv.pool.num_filled(b) for b in (0, 1)] == [8, 8]


def test_fork_counts_references_and_lets_both_grow_apart():
    kv = manager()
    kv.allocate("a", 16)
    kv.commit("a", 16, 16)

    kv.fork("a", "b")
    kv.allocate("a", 17, num_computed_tokens=16)
    kv.allocate("b", 17, num_computed_tokens=16)

    assert kv.block_table("a") == (0, 1, 2)
    assert kv.block_table("b") == (0, 1, 3)
    assert kv.owners(0) == ("a", "b")
    kv.free("a")
    assert kv.owners(0) == ("b",)
    assert kv.pool.ref_count(0) == 1
    kv.check_integrity()


def test_fork_copies_the_last_block_for_whoever_writes_into_it_first():
    kv = manager()
    kv.allocate("a", 12)
    kv.commit("a", 12, 12)
    kv.fork("a", "b")
    kv.fork("a", "c")
    assert kv.block_table("b") == kv.block_table("c") == (0, 1)
    assert [kv.blocks_needed(name, 13, 12) for name in "abc"] == [1, 1, 1]

    for name in "abc":
        assert kv.allocate(name, 13, num_computed_tokens=12)

    assert [kv.block_table(name) for name in "abc"] == [(0, 2), (0, 3), (0, 1)]
    assert kv.take_transfers() == (
        BlockTransfer(TransferKind.COPY, 1, 2, "a"),
        BlockTransfer(TransferKind.COPY, 1, 3, "b"),
    )
    assert kv.take_transfers() == ()
    assert [kv.pool.num_filled(b) for b in (1, 2, 3)] == [4, 4, 4]
    assert [kv.pool.ref_count(b) for b in (0, 1, 2, 3)] == [3, 1, 1, 1]
    kv.check_integrity()


def test_copy_on_write_is_all_or_nothing():
    kv = manager(num_blocks=2)
    kv.allocate("a", 12)
    kv.commit("a", 12, 12)
    kv.fork("a", "b")

    assert not kv.allocate("a", 13, num_computed_tokens=12)
    assert kv.block_table("a") == (0, 1)
    assert kv.take_transfers() == ()
    kv.free("b")
    assert kv.allocate("a", 13, num_computed_tokens=12)
    assert kv.block_table("a") == (0, 1)


def test_swap_out_and_in_restore_the_context_at_other_blocks():
    kv = manager(num_blocks=4, num_swap_blocks=3)
    kv.allocate("a", 12)
    kv.commit("a", 12, 12)

    assert kv.swap_out("a", 12)

    assert (kv.num_free_blocks, kv.swap_space.num_free, kv.num_blocks_of("a")) == (4, 1, 0)
    assert kv.take_transfers() == (
        BlockTransfer(TransferKind.SWAP_OUT, 0, 0, "a"),
        BlockTransfer(TransferKind.SWAP_OUT, 1, 1, "a"),
    )
    kv.allocate("b", 9)
    match = kv.match("a", range(14))
    assert (match.num_known_tokens, match.num_tokens, match.host_tables) == (12, 0, ((0, 1),))
    assert kv.begin("a", Demand(14), match)
    table = kv.block_table("a")
    assert kv.take_transfers() == (
        BlockTransfer(TransferKind.SWAP_IN, 0, table[0], "a"),
        BlockTransfer(TransferKind.SWAP_IN, 1, table[1], "a"),
    )
    assert [kv.pool.num_filled(b) for b in table] == [8, 4]
    assert kv.swap_space.num_free == 3
    kv.check_integrity()


def test_swap_out_without_room_changes_nothing():
    kv = manager(num_blocks=4, num_swap_blocks=1)
    kv.allocate("a", 12)
    kv.commit("a", 12, 12)

    assert not kv.swap_out("a", 12)
    assert (kv.block_table("a"), kv.swap_space.num_free, kv.take_transfers()) == ((0, 1), 1, ())


def test_snapshot_names_owner_fill_and_logical_index_of_each_block():
    kv = manager(num_blocks=3)
    kv.allocate("a", 9)
    kv.commit("a", 9, 9)

    assert kv.snapshot(step_id=7).blocks == (
        BlockState(0, BlockStatus.ACTIVE, 1, 8, ("a",), 0),
        BlockState(1, BlockStatus.ACTIVE, 1, 1, ("a",), 1),
        BlockState(2, BlockStatus.FREE, 0, 0, (), -1),
    )


def test_changes_applied_in_order_rebuild_the_snapshot():
    kv = manager()
    blocks = {}
    for action in (
        lambda: kv.allocate("a", 20),
        lambda: kv.commit("a", 20, 20),
        lambda: kv.allocate("b", 9),
        lambda: kv.truncate("a", 7),
        lambda: kv.free("b"),
        lambda: kv.allocate("c", 30),
    ):
        action()
        blocks.update({change.block_id: change for change in kv.take_changes()})

        assert tuple(blocks[b] for b in range(6)) == kv.snapshot(0).blocks
