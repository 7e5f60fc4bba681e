import pytest

from workbench.engine.block_pool import BlockPool
from workbench.telemetry.records import BlockStatus


def test_allocate_hands_out_lowest_ids_of_a_new_pool_first():
    pool = BlockPool(num_blocks=5, block_size=16)

    assert pool.allocate(2) == [0, 1]
    assert pool.allocate(1) == [2]
    assert (pool.num_free, pool.num_active) == (2, 3)


def test_allocate_returns_none_and_changes_nothing_when_too_few_are_free():
    pool = BlockPool(num_blocks=3, block_size=16)
    pool.allocate(2)

    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert pool.allocate(1) == [2]


def test_free_queues_the_tail_of_a_sequence_first_behind_older_free_blocks():
    pool = BlockPool(num_blocks=5, block_size=16)
    table = pool.allocate(3)
    assert table == [0, 1, 2]

    pool.free(table)

    assert pool.allocate(5) == [3, 4, 2, 1, 0]


def test_share_keeps_a_block_active_until_the_last_reference_is_gone():
    pool = BlockPool(num_blocks=2, block_size=16)
    pool.allocate(1)
    pool.share([0])
    assert pool.ref_count(0) == 2

    pool.free([0])
    assert (pool.ref_count(0), pool.status(0), pool.num_free) == (1, BlockStatus.ACTIVE, 1)

    pool.free([0])
    assert (pool.ref_count(0), pool.status(0), pool.num_free) == (0, BlockStatus.FREE, 2)


def test_free_is_refused_when_the_block_is_free_already():
    pool = BlockPool(num_blocks=2, block_size=16)
    pool.allocate(1)
    pool.free([0])

    with pytest.raises(AssertionError, match="block 0 is freed twice"):
        pool.free([0])


def test_share_is_refused_for_a_free_block():
    pool = BlockPool(num_blocks=2, block_size=16)

    with pytest.raises(AssertionError, match="block 1 is free"):
        pool.share([1])


def test_take_changed_reports_all_blocks_at_first_and_then_only_what_changed():
    pool = BlockPool(num_blocks=4, block_size=16)
    assert pool.take_changed() == [0, 1, 2, 3]
    assert pool.take_changed() == []

    pool.allocate(2)
    pool.set_filled(1, 5)
    assert pool.take_changed() == [0, 1]

    pool.set_filled(1, 5)
    assert pool.take_changed() == []


def test_freed_block_forgets_its_fill():
    pool = BlockPool(num_blocks=1, block_size=16)
    pool.allocate(1)
    pool.set_filled(0, 16)
    pool.free([0])

    assert pool.num_filled(0) == 0


@pytest.mark.parametrize("references", [{}, {0: 2}, {0: 1, 1: 1}])
def test_check_integrity_notices_references_that_do_not_add_up(references):
    pool = BlockPool(num_blocks=2, block_size=16)
    pool.allocate(1)
    pool.check_integrity({0: 1})

    with pytest.raises(AssertionError):
        pool.check_integrity(references)
