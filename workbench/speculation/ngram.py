"""Prompt lookup: what followed the last few tokens when they stood in the context before.

After Saxena's prompt lookup decoding (2023): answers that quote, edit or repeat their prompt are drafted
at no cost at all. Each request has an index of its own that grows with its context.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.speculation.proposer import Draft, DraftContext, DraftRequest


class NgramProposer:
    """Looks up the longest run of last tokens that occurred before, at its latest occurrence."""

    def __init__(self) -> None:
        self._indexes: dict[str, NgramIndex] = {}

    def follow(self, step: DraftContext) -> None:
        """Nothing: contexts say it all."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return what followed the same tokens before; no tokens where they are new."""
        return [Draft(self._propose_one(request)) for request in requests]

    def _propose_one(self, request: DraftRequest) -> tuple[int, ...]:
        index = self._indexes.get(request.request_id)
        if index is None or index.lengths != request.prompt_lookup:
            index = self._indexes[request.request_id] = NgramIndex(*request.prompt_lookup)
        index.extend(request.token_ids)
        start = index.find(request.token_ids)
        return () if start is None else continuation(request.token_ids, start, request.num_tokens)

    def forget(self, request_id: str) -> None:
        """Drop the index of a request."""
        self._indexes.pop(request_id, None)


class NgramIndex:
    """Where each run of `fewest` … `most` tokens of one growing context last ended."""

    def __init__(self, fewest: int, most: int) -> None:
        self.lengths = (fewest, most)
        self._follows: dict[tuple[int, ...], int] = {}
        """Run of tokens → position of the token behind its latest occurrence."""
        self._num_indexed = 0

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take in what was added to the context since the last call: runs that a token stands behind."""
        fewest, most = self.lengths
        for position in range(max(self._num_indexed, fewest), len(token_ids)):
            for length in range(fewest, min(most, position) + 1):
                self._follows[tuple(token_ids[position - length : position])] = position
        self._num_indexed = len(token_ids)

    def find(self, token_ids: Sequence[int]) -> int | None:
        """Return the position behind the latest earlier occurrence of the last tokens, the longest run first."""
        fewest, most = self.lengths
        for length in range(min(most, len(token_ids) - 1), fewest - 1, -1):
            start = self._follows.get(tuple(token_ids[-length:]))
            if start is not None:
                return start
        return None


def continuation(token_ids: Sequence[int], start: int, count: int) -> tuple[int, ...]:
    """Return `count` tokens from `start` on; where the context ends, it is read on in what was just read.

    So a text that repeats itself is drafted beyond its end.
    """
    found: list[int] = []
    for position in range(start, start + count):
        behind = position - len(token_ids)
        found.append(token_ids[position] if behind < 0 else found[behind])
    return tuple(found)
