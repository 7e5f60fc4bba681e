"""What a drafter asks its proposers for, and what it notes of their answers."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.engine.draft_economy import DraftEconomy
from workbench.engine.drafter import Drafter
from workbench.engine.proposers import Proposers
from workbench.engine.request import Request
from workbench.sampling_params import SamplingParams
from workbench.speculation.proposer import Draft, DraftContext, DraftRequest
from workbench.speculation_params import SpeculationParams
from workbench.telemetry.records import RequestStatus


class Doubtful:
    """Drafts two tokens for the first request and none for the others."""

    def __init__(self) -> None:
        self.asked: list[DraftRequest] = []

    def follow(self, step: DraftContext) -> None:
        """Nothing is needed."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.asked += requests
        return [Draft((5, 6)), *(Draft() for _ in requests[1:])]

    def forget(self, request_id: str) -> None:
        """Nothing is kept."""


class NoBlocks:
    def block_tables(self, request_id: str) -> tuple[tuple[int, ...], ...]:
        return ((0,),)


def running(name: str, wishes: SpeculationParams) -> Request:
    request = Request(name, (1, 2, 3), SamplingParams(), seed=0, speculation=wishes)
    request.token_ids.append(4)
    request.num_computed_tokens = 3
    request.status = RequestStatus.RUNNING
    return request


def test_drafting_costs_by_the_tokens_that_were_drafted_not_by_those_asked_for(monkeypatch):
    """Else doubtful drafts, which end early, would seem cheap by the token."""
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(DraftEconomy, "observe_draft", lambda _self, name, count, _seconds: seen.append((name, count)))
    proposer = Doubtful()
    drafter = Drafter(Proposers({"eagle": proposer}), 100, lambda rows: dict.fromkeys(rows, 1.0))
    wishes = SpeculationParams(method="eagle", num_speculative_tokens=7, draft_confidence=0.25)
    requests = [running(name, wishes) for name in "ab"]
    drafter.draft({one.request_id: one for one in requests}, requests, NoBlocks())  # type: ignore[arg-type]
    assert [(one.num_tokens, one.least_confidence) for one in proposer.asked] == [(7, 0.25)] * 2
    assert seen == [("eagle", 2)]
    assert {name: draft.token_ids for name, draft in drafter.drafts.items()} == {"a": (5, 6)}
