"""Finds the beginning of a context that need not be computed, over all groups of layers.

It is cached, or lies in the blocks of a sibling, or was swapped out to host memory. Looking changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from workbench.engine.block_pool import BlockPool
from workbench.engine.block_tables import NO_BLOCK, BlockTables, Table
from workbench.engine.prefix_cache import Prefix
from workbench.engine.swap_space import SwapSpace
from workbench.telemetry.records import CacheMiss


@dataclass(frozen=True)
class PrefixMatch:
    """The beginning of a context that need not be computed: cached blocks, then what lies in host memory."""

    tables: tuple[Table, ...] = ((),)
    """Of each group of layers: blocks in logical order, `NO_BLOCK` behind the window."""
    num_tokens: int = 0
    """Tokens in these blocks."""
    num_cached_blocks: int = 0
    """How many of the blocks nobody holds: taking them uses up free blocks."""
    miss: CacheMiss | None = None
    """Why it is no longer; None when every block that may be shared was found."""
    differs_at: int | None = None
    """For `CacheMiss.DIFFERS`: the first position whose token differs from what is cached."""
    host_tables: tuple[Table, ...] = ()
    """Of each group of layers: blocks of the swap space that hold what follows."""
    num_swapped_tokens: int = 0
    """Tokens of the context up to the end of these, 0 without any."""

    @property
    def num_known_tokens(self) -> int:
        """Tokens of the context that need not be computed."""
        return max(self.num_tokens, self.num_swapped_tokens)

    @property
    def num_host_blocks(self) -> int:
        """Blocks to be copied from host memory."""
        return sum(map(len, self.host_tables))


class ContextLookup:
    """Looks contexts up; the manager acts on what it finds."""

    def __init__(self, pool: BlockPool, groups: Sequence[BlockTables], swap_space: SwapSpace) -> None:
        self._pool, self._groups, self._swap_space = pool, groups, swap_space

    def match_nothing(self, request_id: str, miss: CacheMiss) -> PrefixMatch:
        """Return only what lies in host memory: the cache is not asked, for the reason `miss`."""
        return self._with_swapped(self._match_of((), miss), request_id)

    def match(self, request_id: str, token_ids: Sequence[int], cache_salt: str) -> PrefixMatch:
        """Return what the cache holds of a context's beginning, and host memory behind it; nothing changes.

        Of the groups, the one that finds least decides.
        """
        found = [group.prefixes.match(request_id, token_ids, cache_salt) for group in self._groups]
        least: Prefix = min(found, key=lambda each: len(each.block_ids))
        count = len(least.block_ids)
        cached = self._match_of([each.block_ids[:count] for each in found], least.miss, least.differs_at)
        return self._with_swapped(cached, request_id)

    def _match_of(
        self, tables: Sequence[Table], miss: CacheMiss | None = None, differs_at: int | None = None
    ) -> PrefixMatch:
        """Drop from the blocks that were found those behind the window."""
        if not tables or not tables[0]:
            return PrefixMatch(((),) * len(self._groups), miss=miss, differs_at=differs_at)
        num_tokens = len(tables[0]) * self._pool.block_size
        kept: list[Table] = []
        for group, table in zip(self._groups, tables, strict=True):
            first = group.first_needed(num_tokens)
            kept.append((NO_BLOCK,) * first + tuple(table[first:]))
        num_cached = sum(self._pool.is_cached(block_id) for table in kept for block_id in table)
        return PrefixMatch(tuple(kept), num_tokens, num_cached, miss, differs_at)

    def _with_swapped(self, found: PrefixMatch, request_id: str) -> PrefixMatch:
        """Append to what is cached what lies in host memory behind it."""
        swapped = self._swap_space.contexts.get(request_id)
        if swapped is None or swapped.num_tokens <= found.num_tokens:
            return found
        tables, host_tables = [], []
        for table, places in zip(found.tables, swapped.tables, strict=True):
            num_gone = sum(place == NO_BLOCK for place in places)
            # Blocks before one that was not kept are behind the window, too.
            tables.append(table if num_gone <= len(table) else (NO_BLOCK,) * num_gone)
            host_tables.append(places[len(tables[-1]) :])
        num_cached = sum(self._pool.is_cached(block_id) for table in tables for block_id in table)
        return replace(
            found,
            tables=tuple(tables),
            num_cached_blocks=num_cached,
            host_tables=tuple(host_tables),
            num_swapped_tokens=swapped.num_tokens,
        )

    def match_fork(self, request_id: str, source_id: str, num_tokens: int, found: PrefixMatch) -> PrefixMatch:
        """Return the better of a match and the full blocks that hold the first `num_tokens` tokens of another request.

        Both contexts agree in these tokens.
        """
        num_blocks = num_tokens // self._pool.block_size
        if num_blocks * self._pool.block_size <= found.num_tokens:
            return found
        tables = [group.prefix_of(source_id, num_blocks) for group in self._groups]
        whole = [table for table in tables if table is not None]
        if len(whole) < len(tables):
            return found
        return self._with_swapped(self._match_of(whole, found.miss, found.differs_at), request_id)
