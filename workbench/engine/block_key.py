"""What a full KV block holds: the name under which its contents are found again.

Keys and values of a token depend on all tokens before it, so a block is named by its own tokens and,
through its parent, by those of every block before. Whatever else decides the contents (adapter,
weights, dtype of the cache, a salt that keeps users apart) is part of the name too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

HashFunction = Callable[[Hashable], int]


class BlockKey:
    """Name of one full block; equal keys mean equal contents.

    The hash covers the whole chain, yet equality never rests on it: tokens, extras and parents are
    compared, so a collision costs time and nothing else.
    """

    __slots__ = ("_hash", "depth", "extra", "parent", "token_ids")

    def __init__(
        self,
        parent: BlockKey | None,
        token_ids: tuple[int, ...],
        extra: tuple[Hashable, ...] = (),
        hash_function: HashFunction = hash,
    ) -> None:
        """`parent` is the key of the block before, None for the first of a context."""
        self.parent = parent
        self.token_ids = token_ids
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.extra = extra
        self._hash: int = hash_function((parent._hash if parent is not None else None, token_ids, extra))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Walk both chains until they meet. Keys from one index share their parents, so that is the first step."""
        if not isinstance(other, BlockKey):
            return NotImplemented
        mine: BlockKey | None = self
        yours: BlockKey | None = other
        while mine is not yours:
            if mine is None or yours is None or mine.token_ids != yours.token_ids or mine.extra != yours.extra:
                return False
            mine, yours = mine.parent, yours.parent
        return True

    def __repr__(self) -> str:
        return f"BlockKey(block {self.depth}, {self.token_ids})"


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two sequences have in common at their beginning."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))
