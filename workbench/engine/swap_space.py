"""The ids of blocks in host memory, where contexts wait that had to make room (arXiv 2309.06180, section 4.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SwappedContext:
    """Where a request's context lies in host memory."""

    tables: tuple[tuple[int, ...], ...]
    """Of each group of layers: blocks of the swap space in logical order, -1 where none was needed any more."""
    num_tokens: int
    """Tokens of the context, from its beginning."""

    @property
    def block_ids(self) -> list[int]:
        """All its blocks of the swap space."""
        return [block_id for table in self.tables for block_id in table if block_id >= 0]


class SwapSpace:
    """A fixed number of blocks in host memory, handed out to whole contexts. Knows ids, no contents."""

    def __init__(self, num_blocks: int) -> None:
        """Create `num_blocks` free blocks; 0 for no swap space."""
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._contexts: dict[str, SwappedContext] = {}

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def contexts(self) -> Mapping[str, SwappedContext]:
        """What lies here, by request id."""
        return self._contexts

    def num_blocks_of(self, request_id: str) -> int:
        """Return how many blocks hold a request's context, 0 when it lies elsewhere."""
        return len(self._contexts[request_id].block_ids) if request_id in self._contexts else 0

    def keep(self, request_id: str, tables: Sequence[Sequence[int]], num_tokens: int) -> SwappedContext | None:
        """Make room for the blocks of these tables, all or nothing. Return where they go, or None without room."""
        assert request_id not in self._contexts, f"{request_id} lies in the swap space already"
        if sum(block_id >= 0 for table in tables for block_id in table) > self.num_free:
            return None
        places = tuple(tuple(self._free.pop() if block_id >= 0 else -1 for block_id in table) for table in tables)
        context = self._contexts[request_id] = SwappedContext(places, num_tokens)
        return context

    def give_back(self, request_id: str) -> None:
        """Let go of a context; a request without one is fine."""
        context = self._contexts.pop(request_id, None)
        if context is not None:
            self._free.extend(context.block_ids)

    def hand_over(self, request_id: str, heir_id: str) -> None:
        """Let a context belong to another request."""
        if request_id in self._contexts:
            self._contexts[heir_id] = self._contexts.pop(request_id)

    def check_integrity(self) -> None:
        """Assert that every block is free or belongs to one context."""
        held = [block_id for context in self._contexts.values() for block_id in context.block_ids]
        assert sorted([*held, *self._free]) == list(range(self.num_blocks)), "a block of the swap space is lost"
