"""Notice that a model repeats itself, which small models do at temperature 0."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

LOOP_TOKENS: Final = 16
LOOP_TIMES: Final = 3


class LoopGuard:
    """Watches one answer."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque(maxlen=LOOP_TOKENS)
        self._seen: Counter[tuple[int, ...]] = Counter()

    def add(self, token_id: int) -> bool:
        """Take the next token; return whether its last 16 tokens have now occurred three times."""
        self._latest.append(token_id)
        if len(self._latest) < LOOP_TOKENS:
            return False
        key = tuple(self._latest)
        self._seen[key] += 1
        return self._seen[key] >= LOOP_TIMES
