"""Which answer is under way in which browser tab, so that Stop and a closed tab can end it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from workbench.engine.service import EngineService
from workbench.ui.listeners import Listeners

PATIENCE_S: Final = 10.0
"""How long a session's answers go on while nobody listens to it; a busy browser opens its stream late."""
LOOK_S: Final = 0.5


@dataclass
class ActiveTurn:
    """One answer under way. `request_id` is None until the engine has accepted the request."""

    request_id: str | None = None
    is_stopped: bool = False


@dataclass
class ActiveTurns:
    """Answers under way by session. Used from the event loop only."""

    service: EngineService
    listeners: Listeners | None = None
    """Sessions that nobody listens to are stopped; None where that is not known."""
    _watches: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _by_session: dict[str, list[ActiveTurn]] = field(default_factory=dict)

    def start(self, session: str) -> ActiveTurn:
        """Note a new answer of a session."""
        turn = ActiveTurn()
        self._by_session.setdefault(session, []).append(turn)
        if self.listeners is not None and session not in self._watches:
            self._watches[session] = asyncio.create_task(self._watch(session, self.listeners))
        return turn

    def end(self, session: str, turn: ActiveTurn) -> None:
        """Forget an answer that has ended."""
        turns = self._by_session.get(session, [])
        if turn in turns:
            turns.remove(turn)
        if not turns:
            self._by_session.pop(session, None)
            if (watch := self._watches.pop(session, None)) is not None:
                watch.cancel()

    def is_busy(self, session: str) -> bool:
        """Whether an answer of this session is under way."""
        return session in self._by_session

    def request_ids(self, session: str) -> tuple[str, ...]:
        """Return the requests of a session that the engine has accepted and that have not ended."""
        return tuple(turn.request_id for turn in self._by_session.get(session, []) if turn.request_id is not None)

    def stop(self, session: str) -> int:
        """Abort every answer of a session; returns how many there were."""
        turns = self._by_session.get(session, [])
        for turn in turns:
            turn.is_stopped = True
            if turn.request_id is not None:
                self.service.abort(turn.request_id)
        return len(turns)

    async def _watch(self, session: str, listeners: Listeners) -> None:
        """Stop a session's answers once nobody has listened to it for a while."""
        alone_s = 0.0
        while alone_s < PATIENCE_S:
            await asyncio.sleep(LOOK_S)
            alone_s = 0.0 if listeners.are_there(session) else alone_s + LOOK_S
        self.stop(session)
