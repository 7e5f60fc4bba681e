"""Finds the beginning of a context among the blocks that were computed before.

Full blocks are named by what they hold (see `block_key`); a context is looked up block by block from its
beginning, as in vLLM and, with a tree, in SGLang's RadixAttention (arXiv 2312.07104).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from workbench.engine.block_key import BlockKey, HashFunction
from workbench.engine.block_pool import BlockPool
from workbench.telemetry.records import CacheMiss


@dataclass(frozen=True)
class Prefix:
    """What a look-up found: blocks in logical order, and why there are no more."""

    block_ids: tuple[int, ...] = ()
    miss: CacheMiss | None = None
    """None when every block that may be shared was found."""
    differs_at: int | None = None
    """For `CacheMiss.DIFFERS`: the first position whose token differs from what is cached."""


class PrefixCache:
    """Names the blocks of requests, and looks contexts up. The pool knows which block has which name."""

    def __init__(self, pool: BlockPool, extra_keys: tuple[Hashable, ...], hash_function: HashFunction) -> None:
        """extra_keys: what decides the contents of blocks besides tokens, for all requests."""
        self._pool = pool
        self._extra_keys, self._hash_function = extra_keys, hash_function
        self._chains: dict[str, list[BlockKey]] = {}
        """Of each request: keys of its full blocks, as far as they were needed."""
        self._num_named: dict[str, int] = {}
        """Of each request: leading blocks that the pool knows by their key."""

    def match(self, request_id: str, token_ids: Sequence[int], cache_salt: str) -> Prefix:
        """Return the longest cached beginning of a context; nothing changes.

        The last token is never part of it: it has to be computed for its logits.
        """
        block_size = self._pool.block_size
        num_usable = (len(token_ids) - 1) // block_size
        if num_usable == 0:
            return Prefix(miss=CacheMiss.SHORTER_THAN_BLOCK)
        block_ids: list[int] = []
        for index in range(num_usable):
            key = self._key(request_id, index, token_ids, cache_salt)
            found = self._pool.find(key)
            if found is None:
                return Prefix(tuple(block_ids), *self._explain_miss(key, index * block_size))
            block_id, self._chains[request_id][index] = found
            block_ids.append(block_id)
        return Prefix(tuple(block_ids))

    def _explain_miss(self, key: BlockKey, first_position: int) -> tuple[CacheMiss, int | None]:
        if self._pool.was_evicted(key):
            return CacheMiss.EVICTED, None
        return CacheMiss.DIFFERS, first_position + self._pool.common_length(key)

    def begin(self, request_id: str, num_blocks: int) -> None:
        """Note that a request begins with blocks that have their names already."""
        self._num_named[request_id] = num_blocks

    def name(
        self, request_id: str, table: Sequence[int], num_full: int, token_ids: Sequence[int], cache_salt: str
    ) -> None:
        """Give a request's first `num_full` blocks their names, so that they can be found from now on."""
        first = self._num_named.get(request_id, 0)
        for index in range(first, num_full):
            key = self._key(request_id, index, token_ids, cache_salt)
            if table[index] >= 0:  # not fallen out of a window before the cache was switched on
                self._chains[request_id][index] = self._pool.remember(table[index], key)
        self._num_named[request_id] = max(first, num_full)

    def _key(self, request_id: str, index: int, token_ids: Sequence[int], cache_salt: str) -> BlockKey:
        """Return the key of a request's full block `index`; token_ids are those of the whole context."""
        chain, size = self._chains.setdefault(request_id, []), self._pool.block_size
        for number in range(len(chain), index + 1):
            own = tuple(token_ids[number * size : (number + 1) * size])
            extra = (*self._extra_keys, cache_salt)
            chain.append(BlockKey(chain[-1] if chain else None, own, extra, self._hash_function))
        return chain[index]

    def fork(self, source_id: str, request_id: str) -> None:
        """Let a request begin with all the names of another."""
        self._chains[request_id] = list(self._chains.get(source_id, ()))
        self._num_named[request_id] = self._num_named.get(source_id, 0)

    def truncate(self, request_id: str, num_full: int) -> None:
        """Forget the names behind the first `num_full` blocks."""
        del self._chains.get(request_id, [])[num_full:]
        self._num_named[request_id] = min(num_full, self._num_named.get(request_id, 0))

    def forget(self, request_id: str) -> None:
        """Forget a request; the blocks keep their names."""
        self._chains.pop(request_id, None)
        self._num_named.pop(request_id, None)
