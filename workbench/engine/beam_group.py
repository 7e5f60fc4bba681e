"""The sequences of one beam search: which of them are in use, and what each may go on with."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.engine.beam_search import BeamSearch, Candidate, Continuation, Hypothesis
from workbench.engine.request import Request


class BeamGroup:
    """Gathers the candidates of all beams; the search goes on when they are complete.

    Beams need not be computed in the same step: one that is preempted holds up the others, nothing more.
    """

    def __init__(self, search: BeamSearch, requests: Sequence[Request]) -> None:
        """`requests` are the sequences, the first of them computes the prompt; only the scheduler changes them."""
        self._search = search
        self.requests = tuple(requests)
        self.members: list[Request] = [self.requests[0]]
        """Those in use, best first."""
        self._candidates: dict[str, tuple[Candidate, ...]] = {}
        for request in self.requests:
            request.beams = self

    @property
    def num_candidates(self) -> int:
        """How many of the most likely tokens each beam has to offer."""
        return self._search.num_candidates

    @property
    def is_ready(self) -> bool:
        """Whether every beam has made its offer."""
        return len(self._candidates) == len(self.members)

    def offer(self, request: Request, candidates: tuple[Candidate, ...]) -> None:
        """Take the most likely next tokens of one beam."""
        self._candidates[request.request_id] = candidates

    def has_offered(self, request: Request) -> bool:
        """Whether a beam waits for the others."""
        return request.request_id in self._candidates

    def withdraw(self) -> None:
        """Forget all offers: the beams are preempted and will make them again."""
        self._candidates.clear()

    def advance(self) -> list[tuple[Request, Continuation]]:
        """Return which beams go on and with which token, best first; empty when the search is over."""
        outputs = [request.output_token_ids for request in self.members]
        candidates = [self._candidates[request.request_id] for request in self.members]
        self._candidates.clear()
        return [(self.members[each.parent], each) for each in self._search.advance(outputs, candidates)]

    def best(self, count: int) -> list[Hypothesis]:
        """Return the best answers of a search that is over; where too few tokens were possible, some are empty."""
        found = self._search.best(count, [request.output_token_ids for request in self.members])
        return [*found, *[Hypothesis((), float("-inf"), is_stopped=False)] * (count - len(found))]
