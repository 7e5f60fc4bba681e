"""Which answer is under way in which browser tab, so that Stop and a closed tab can end it."""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.engine.service import EngineService


@dataclass
class ActiveTurn:
    """One answer under way. `request_id` is None until the engine has accepted the request."""

    request_id: str | None = None
    is_stopped: bool = False


@dataclass
class ActiveTurns:
    """Answers under way by session. Used from the event loop only."""

    service: EngineService
    _by_session: dict[str, list[ActiveTurn]] = field(default_factory=dict)

    def start(self, session: str) -> ActiveTurn:
        """Note a new answer of a session."""
        turn = ActiveTurn()
        self._by_session.setdefault(session, []).append(turn)
        return turn

    def end(self, session: str, turn: ActiveTurn) -> None:
        """Forget an answer that has ended."""
        turns = self._by_session.get(session, [])
        if turn in turns:
            turns.remove(turn)
        if not turns:
            self._by_session.pop(session, None)

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
