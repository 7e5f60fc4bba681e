"""Other names for requests, so that a saved run can be given away."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from workbench.telemetry.live_requests import StandingDecision
from workbench.telemetry.records import BlockState, BlockTransfer, Explanation, RequestState, StepRecord
from workbench.telemetry.saved_state import SavedRequest, SavedState


class Redaction:
    """Gives each request a number for a name. Answers of one request keep a name in common."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._num_families = 0

    def status(self, status: dict[str, Any]) -> dict[str, Any]:
        """Return the engine's status without the texts of errors, which may quote anything."""
        return status | {"error": None, "error_traceback": None}

    def record(self, record: StepRecord) -> StepRecord:
        """Return a step with the new names."""
        return replace(
            record,
            requests=tuple(self._request(each) for each in record.requests),
            block_changes=tuple(self._block(each) for each in record.block_changes),
            explanations=tuple(self._explanation(each) for each in record.explanations),
            transfers=tuple(self._transfer(each) for each in record.transfers),
        )

    def state(self, state: SavedState) -> SavedState:
        """Return the state before the first step with the new names."""
        for each in state.requests:  # before decisions name them without their family
            self._name(each.state.request_id, each.state.family)
        requests = tuple(self._saved(each) for each in state.requests)
        return replace(state, requests=requests, named=tuple(self._name(name) for name in state.named))

    def _name(self, request_id: str, family: str = "") -> str:
        if request_id not in self._names:
            suffix = request_id.removeprefix(family)
            if family and suffix != request_id and suffix[1:].isdigit():
                self._names[request_id] = self._name(family) + suffix
            else:
                self._num_families += 1
                self._names[request_id] = f"q{self._num_families}"
        return self._names[request_id]

    def _request(self, state: RequestState) -> RequestState:
        family = self._name(state.family) if state.family else ""
        return replace(state, request_id=self._name(state.request_id, state.family), family=family)

    def _block(self, block: BlockState) -> BlockState:
        return replace(block, request_ids=tuple(self._name(name) for name in block.request_ids))

    def _explanation(self, told: Explanation) -> Explanation:
        cause = told.cause_request_id
        return replace(
            told, request_id=self._name(told.request_id), cause_request_id=None if cause is None else self._name(cause)
        )

    def _transfer(self, moved: BlockTransfer) -> BlockTransfer:
        return replace(moved, request_id=self._name(moved.request_id))

    def _standing(self, decision: StandingDecision | None) -> StandingDecision | None:
        if decision is None:
            return None
        return StandingDecision(self._explanation(decision.explanation), decision.since_step)

    def _saved(self, saved: SavedRequest) -> SavedRequest:
        return replace(
            saved,
            state=self._request(saved.state),
            decision=self._standing(saved.decision),
            preemption=self._standing(saved.preemption),
        )
