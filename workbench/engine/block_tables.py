"""The block tables of one group of layers: which physical block holds which part of each context.

Layers that attend equally far back share a table. With a sliding window (arXiv 2004.05150), blocks that
fell out of it are given back; their places in the table stay, as `NO_BLOCK`, and are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final

from workbench.engine.block_key import HashFunction
from workbench.engine.block_pool import BlockPool
from workbench.engine.prefix_cache import PrefixCache

NO_BLOCK: Final = -1
"""Stands in a table where a block fell out of the window."""

Table = Sequence[int]
Move = Callable[[int, int, str], None]
"""Plans a copy: source block, target block, request."""


class BlockTables:
    """Tables by request id, over a pool that other groups may use, too."""

    def __init__(
        self, pool: BlockPool, window: int | None, extra_keys: tuple[Hashable, ...], hash_function: HashFunction
    ) -> None:
        """`window`: tokens that one attends to, itself included; None for all. The keys are those of `PrefixCache`."""
        self.pool = pool
        self.window = window
        self.prefixes = PrefixCache(pool, extra_keys, hash_function)
        self._tables: dict[str, list[int]] = {}
        self._num_released: dict[str, int] = {}
        """Of each request: leading places whose blocks fell out of the window."""
        self._owners: dict[int, list[str]] = {}

    # ------------------------------------------------------------------------------ looking

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._tables

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def table(self, request_id: str) -> tuple[int, ...]:
        """Return the physical block of each logical block, `NO_BLOCK` behind the window."""
        return tuple(self._tables.get(request_id, ()))

    def held(self, request_id: str) -> list[int]:
        """Return the blocks that a request holds, in logical order."""
        return self._tables.get(request_id, [])[self._num_released.get(request_id, 0) :]

    def num_held(self, request_id: str) -> int:
        """Return how many they are."""
        return len(self._tables.get(request_id, ())) - self._num_released.get(request_id, 0)

    def num_missing(self, request_id: str, num_tokens: int, num_computed_tokens: int) -> int:
        """Return how many blocks a request lacks to hold `num_tokens` tokens, a copy of a shared one included."""
        missing = -(-num_tokens // self.pool.block_size) - len(self._tables.get(request_id, ()))
        return max(0, missing) + (self._shared_end(request_id, num_computed_tokens) is not None)

    def is_complete(self, request_id: str, num_tokens: int, num_computed_tokens: int) -> bool:
        """Whether a request lacks nothing, and may write where the next token goes."""
        held = len(self._tables.get(request_id, ())) * self.pool.block_size
        return num_tokens <= held and self._shared_end(request_id, num_computed_tokens) is None

    def _shared_end(self, request_id: str, num_computed_tokens: int) -> int | None:
        """Return the place of the block that the next token is written into, if others hold it and read it."""
        block_size = self.pool.block_size
        if num_computed_tokens % block_size == 0:
            return None
        index, table = num_computed_tokens // block_size, self._tables.get(request_id, ())
        is_shared = index < len(table) and self.pool.ref_count(table[index]) > 1
        return index if is_shared else None

    def first_needed(self, num_computed_tokens: int) -> int:
        """Return the first logical block that the next token reads."""
        if self.window is None:
            return 0
        return max(0, num_computed_tokens - self.window + 1) // self.pool.block_size

    def tokens_at_once(self, num_tokens: int, step_tokens: int) -> int:
        """Return how many of `num_tokens` tokens are held at the same time when a step adds `step_tokens` at most."""
        if self.window is None:
            return num_tokens
        return min(num_tokens, self.window + step_tokens + self.pool.block_size)

    def prefix_of(self, request_id: str, num_blocks: int) -> Table | None:
        """Return the leading blocks of a table as far as the next token reads them; None when some are gone."""
        table, first = self._tables[request_id][:num_blocks], self.first_needed(num_blocks * self.pool.block_size)
        is_whole = len(table) == num_blocks and self._num_released.get(request_id, 0) <= first
        return [NO_BLOCK] * first + table[first:] if is_whole else None

    # ----------------------------------------------------------------------------- changing

    def begin(self, request_id: str, table: Table) -> None:
        """Let a request without a table begin with blocks that hold something already: it shares them."""
        assert request_id not in self._tables, f"{request_id} holds blocks already"
        num_released = sum(block_id == NO_BLOCK for block_id in table)
        self.pool.share(table[num_released:])
        self._tables[request_id] = list(table)
        self._num_released[request_id] = num_released
        self._own(request_id, table[num_released:])
        self.prefixes.begin(request_id, len(table))

    def grow(
        self, request_id: str, num_tokens: int, num_computed_tokens: int, take: Callable[[int], list[int]], copy: Move
    ) -> None:
        """Give a request what it lacks; there is room for it."""
        shared = self._shared_end(request_id, num_computed_tokens)
        if shared is not None:
            self._replace(request_id, shared, take(1)[0], copy)
        table = self._tables.setdefault(request_id, [])
        missing = -(-num_tokens // self.pool.block_size) - len(table)
        if missing > 0:
            block_ids = take(missing)
            table.extend(block_ids)
            self._own(request_id, block_ids)

    def _replace(self, request_id: str, index: int, own: int, copy: Move) -> None:
        """Give a request a block of its own in the place of one that it shares."""
        table = self._tables[request_id]
        shared = table[index]
        copy(shared, own, request_id)
        self.pool.set_filled(own, self.pool.num_filled(shared))
        self._release(request_id, [shared])
        table[index] = own
        self._own(request_id, [own])

    def fork(self, source_id: str, request_id: str) -> None:
        """Let a request without a table share all blocks of another, and what is known of them."""
        self.begin(request_id, self._tables[source_id])
        self.prefixes.fork(source_id, request_id)

    def fill(self, request_id: str, first_token: int, end_token: int) -> None:
        """Record that these tokens of a context lie in its blocks now."""
        table, block_size = self._tables[request_id], self.pool.block_size
        for index in range(first_token // block_size, -(-end_token // block_size)):
            self.pool.set_filled(table[index], min(block_size, end_token - index * block_size))

    def name(self, request_id: str, num_full: int, token_ids: Sequence[int], cache_salt: str) -> None:
        """Let the first `num_full` blocks of a context be found from now on."""
        self.prefixes.name(request_id, self._tables[request_id], num_full, token_ids, cache_salt)

    def release_behind(self, request_id: str, num_computed_tokens: int) -> None:
        """Give back what fell out of the window."""
        first, table = self._num_released.get(request_id, 0), self._tables[request_id]
        end = min(self.first_needed(num_computed_tokens), len(table))
        if end > first:
            self._release(request_id, table[first:end])
            table[first:end] = [NO_BLOCK] * (end - first)
            self._num_released[request_id] = end

    def truncate(self, request_id: str, num_tokens: int) -> None:
        """Give back the blocks behind the first `num_tokens` tokens and forget the slots behind them."""
        table, keep = self._tables[request_id], -(-num_tokens // self.pool.block_size)
        self.prefixes.truncate(request_id, num_tokens // self.pool.block_size)
        self._release(request_id, table[keep:])
        del table[keep:]
        if keep:
            filled = min(self.pool.num_filled(table[-1]), num_tokens - (keep - 1) * self.pool.block_size)
            self.pool.set_filled(table[-1], filled)

    def free(self, request_id: str) -> int:
        """Give back all blocks of a request; one without a table is fine. Return how many."""
        held = self.held(request_id)
        self.prefixes.forget(request_id)
        self._tables.pop(request_id, None)
        self._num_released.pop(request_id, None)
        self._release(request_id, held)
        return len(held)

    def _own(self, request_id: str, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self._owners.setdefault(block_id, []).append(request_id)

    def _release(self, request_id: str, block_ids: Sequence[int]) -> None:
        self.pool.free(block_ids)
        for block_id in block_ids:
            owners = self._owners[block_id]
            owners.remove(request_id)
            if not owners:
                del self._owners[block_id]

    # --------------------------------------------------------------------------- inspection

    def owners(self, block_id: int) -> tuple[str, ...]:
        """Return the requests whose tables hold the block, oldest holder first."""
        return tuple(self._owners.get(block_id, ()))

    def logical_index(self, block_id: int) -> int:
        """Return the place of a held block in its context. All owners agree on it."""
        return self._tables[self._owners[block_id][0]].index(block_id)

    def check_integrity(self) -> None:
        """Assert that tables and owners tell the same story."""
        for request_id, table in self._tables.items():
            num_released = self._num_released.get(request_id, 0)
            held = table[num_released:]
            assert table[:num_released] == [NO_BLOCK] * num_released and NO_BLOCK not in held, table
            assert len(set(held)) == len(held), f"{request_id} holds a block twice: {table}"
            assert all(request_id in self._owners[block_id] for block_id in held)
        assert sum(map(len, self._owners.values())) == sum(map(self.num_held, self._tables))
