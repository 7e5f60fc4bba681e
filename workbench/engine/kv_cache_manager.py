"""Maps requests to block tables: the logical memory of a request onto the physical pool.

The manager alone knows which request holds which blocks. A table only grows until it is freed, or
truncated after rejected drafts; an allocation takes all the blocks it needs or none.
"""

from __future__ import annotations

from collections import Counter

from workbench.engine.block_pool import BlockPool
from workbench.telemetry.records import BlockState, PoolSnapshot


class KVCacheManager:
    """Block tables of all requests that hold memory."""

    def __init__(self, pool: BlockPool) -> None:
        """Manage the blocks of `pool`, all of them free."""
        self.pool = pool
        self._tables: dict[str, list[int]] = {}
        self._owners: dict[int, list[str]] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an allocation can take."""
        return self.pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.pool.block_size)

    def blocks_needed(self, request_id: str, num_tokens: int) -> int:
        """Return how many more blocks the request needs to hold `num_tokens` tokens."""
        return max(0, self.blocks_for(num_tokens) - self.num_blocks_of(request_id))

    def num_blocks_of(self, request_id: str) -> int:
        """Return how many blocks the request holds."""
        return len(self._tables.get(request_id, ()))

    def block_table(self, request_id: str) -> tuple[int, ...]:
        """Return the physical block of each logical block."""
        return tuple(self._tables.get(request_id, ()))

    def allocate(self, request_id: str, num_tokens: int) -> bool:
        """Grow the table until it holds `num_tokens` tokens. Return False, unchanged, without room."""
        needed = self.blocks_needed(request_id, num_tokens)
        if needed == 0:
            return True
        block_ids = self.pool.allocate(needed)
        if block_ids is None:
            return False
        self._append(request_id, block_ids)
        return True

    def share(self, source_id: str, request_id: str, num_blocks: int) -> None:
        """Let a request without blocks begin with the first `num_blocks` blocks of another.

        The blocks must be full: nobody writes into a shared block.
        """
        assert request_id not in self._tables, f"{request_id} holds blocks already"
        block_ids = self._tables[source_id][:num_blocks]
        assert all(self.pool.num_filled(b) == self.pool.block_size for b in block_ids), "only full blocks are shared"
        self.pool.share(block_ids)
        self._append(request_id, block_ids)

    def commit(self, request_id: str, num_computed_tokens: int, num_new_tokens: int) -> None:
        """Record that the last `num_new_tokens` of the first `num_computed_tokens` were just written."""
        block_size = self.pool.block_size
        table = self._tables[request_id]
        first = (num_computed_tokens - num_new_tokens) // block_size
        for index in range(first, self.blocks_for(num_computed_tokens)):
            self.pool.set_filled(table[index], min(block_size, num_computed_tokens - index * block_size))

    def truncate(self, request_id: str, num_tokens: int) -> None:
        """Give back the blocks behind the first `num_tokens` tokens and forget the slots behind them."""
        table = self._tables[request_id]
        keep = self.blocks_for(num_tokens)
        self._release(request_id, table[keep:])
        del table[keep:]
        if keep:
            filled = min(self.pool.num_filled(table[-1]), num_tokens - (keep - 1) * self.pool.block_size)
            self.pool.set_filled(table[-1], filled)

    def free(self, request_id: str) -> int:
        """Give back all blocks of the request; one without blocks is fine. Return how many."""
        table = self._tables.pop(request_id, [])
        self._release(request_id, table)
        return len(table)

    def _append(self, request_id: str, block_ids: list[int]) -> None:
        self._tables.setdefault(request_id, []).extend(block_ids)
        for block_id in block_ids:
            self._owners.setdefault(block_id, []).append(request_id)

    def _release(self, request_id: str, block_ids: list[int]) -> None:
        self.pool.free(block_ids)
        for block_id in block_ids:
            owners = self._owners[block_id]
            owners.remove(request_id)
            if not owners:
                del self._owners[block_id]

    # ------------------------------------------------------------------------------ inspection

    def owners(self, block_id: int) -> tuple[str, ...]:
        """Return the requests whose tables hold the block, oldest holder first."""
        return tuple(self._owners.get(block_id, ()))

    def block_state(self, block_id: int) -> BlockState:
        """Return what a view may know of one physical block."""
        owner = next(iter(self._owners.get(block_id, ())), None)
        return BlockState(
            block_id=block_id,
            status=self.pool.status(block_id),
            ref_count=self.pool.ref_count(block_id),
            num_filled=self.pool.num_filled(block_id),
            request_id=owner,
            logical_index=-1 if owner is None else self._tables[owner].index(block_id),
        )

    def take_changes(self) -> tuple[BlockState, ...]:
        """Return the state of every block that changed since the last call."""
        return tuple(self.block_state(block_id) for block_id in self.pool.take_changed())

    def snapshot(self, step_id: int, epoch: int = 0) -> PoolSnapshot:
        """Return the state of every block."""
        blocks = tuple(self.block_state(block_id) for block_id in range(self.pool.num_blocks))
        return PoolSnapshot(step_id=step_id, block_size=self.pool.block_size, blocks=blocks, epoch=epoch)

    def check_integrity(self) -> None:
        """Assert that tables, owners and the pool's reference counts tell the same story."""
        references = Counter(block_id for table in self._tables.values() for block_id in table)
        for request_id, table in self._tables.items():
            assert len(set(table)) == len(table), f"{request_id} holds a block twice: {table}"
            assert all(request_id in self._owners[block_id] for block_id in table)
        assert {b: len(owners) for b, owners in self._owners.items()} == dict(references)
        self.pool.check_integrity(references)
