"""Conversations by browser tab, kept on the server.

`gr.State` would do the same, but then every open tab holds one of the six connections that a
browser grants a host, and the fifth tab is stuck. So nobody tells us when a tab has gone: the least
recently used conversations are forgotten instead.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from workbench.ui.turns import Conversation

CAPACITY: Final = 500
"""Conversations kept by default."""


class Conversations:
    """The latest conversations. Used from the event loop only."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        """Keep up to `capacity` conversations."""
        self._capacity = capacity
        self._by_session: OrderedDict[str, Conversation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_session)

    def of(self, session: str) -> Conversation:
        """Return a tab's conversation; empty when there is none, or none any more."""
        conversation = self._by_session.get(session, ())
        if conversation:
            self._by_session.move_to_end(session)
        return conversation

    def keep(self, session: str, conversation: Conversation) -> None:
        """Keep a tab's conversation; an empty one is forgotten."""
        self._by_session.pop(session, None)
        if conversation:
            self._by_session[session] = conversation
        while len(self._by_session) > self._capacity:
            self._by_session.popitem(last=False)
