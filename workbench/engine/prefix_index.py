"""Which block holds which contents: the index that prefix caching looks contents up in.

It knows keys and block ids, neither counts nor requests; the pool tells it what is stored and what is
evicted. It also remembers what was evicted lately, and which blocks follow which, so that a miss can
be explained.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Final

from workbench.engine.block_key import BlockKey, common_length

MAX_SIBLINGS: Final = 8
"""Blocks that are compared to say where a context parts from the cached ones."""


class PrefixIndex:
    """Keys of full blocks ↔ block ids."""

    def __init__(self, num_evicted: int) -> None:
        """Remember up to `num_evicted` evicted keys."""
        self._block_of: dict[BlockKey, int] = {}
        self._key_of: dict[int, BlockKey] = {}
        self._children: dict[BlockKey | None, dict[BlockKey, None]] = {}
        self._evicted: OrderedDict[BlockKey, None] = OrderedDict()
        self._num_evicted = num_evicted

    def __len__(self) -> int:
        return len(self._key_of)

    def add(self, block_id: int, key: BlockKey) -> BlockKey:
        """Note the contents of a block; return the key they are known by.

        The first block with some contents stands for them. A second one is not noted.
        """
        known = self._block_of.get(key)
        if known is not None:
            return self._key_of[known]
        self._block_of[key] = block_id
        self._key_of[block_id] = key
        self._children.setdefault(key.parent, {})[key] = None
        self._evicted.pop(key, None)
        return key

    def remove(self, block_id: int) -> None:
        """Forget the contents of a block, which are about to be overwritten. One that was not noted is fine."""
        key = self._key_of.pop(block_id, None)
        if key is None:
            return
        del self._block_of[key]
        siblings = self._children[key.parent]
        del siblings[key]
        if not siblings:
            del self._children[key.parent]
        self._evicted[key] = None
        if len(self._evicted) > self._num_evicted:
            self._evicted.popitem(last=False)

    def find(self, key: BlockKey) -> tuple[int, BlockKey] | None:
        """Return the block with these contents and the key it is known by, None where there is none."""
        block_id = self._block_of.get(key)
        return None if block_id is None else (block_id, self._key_of[block_id])

    def key_of(self, block_id: int) -> BlockKey | None:
        """Return what the block holds, None where that is not noted."""
        return self._key_of.get(block_id)

    def was_evicted(self, key: BlockKey) -> bool:
        """Whether these contents were in the cache and had to go."""
        return key in self._evicted

    def common_length(self, key: BlockKey) -> int:
        """Return how many tokens of a missing block agree with the cached blocks that follow the same parent."""
        siblings = itertools.islice(self._children.get(key.parent, ()), MAX_SIBLINGS)
        return max((common_length(key.token_ids, other.token_ids) for other in siblings), default=0)
