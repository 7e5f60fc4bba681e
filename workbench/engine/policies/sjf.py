"""Shortest job first: who has the fewest tokens left, up to `max_tokens`, runs first (with ageing)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from workbench.engine.request import Request

TOKENS_PER_ARRIVAL: Final = 16
"""How many tokens' head start a request has over each one that arrives after it."""
UNLIMITED_TOKENS: Final = 4096
"""What a request counts as that may fill its context."""


class ShortestJobFirst:
    """Short jobs overtake long ones, but not for ever.

    Waiting makes every request more urgent at the same rate, so the order of two that wait never
    changes, and the sum of length and arrival is all that has to be compared. A request with n tokens
    left can be overtaken by at most n / TOKENS_PER_ARRIVAL of those that arrive after it.
    """

    name = "sjf"

    def waiting_key(self, request: Request) -> tuple[int, int]:
        """Order by tokens left plus the head start of those who came before."""
        max_tokens = request.sampling_params.max_tokens
        output = UNLIMITED_TOKENS if max_tokens is None else max_tokens
        left = request.num_missing_tokens + output - request.num_output_tokens
        return (left + TOKENS_PER_ARRIVAL * request.arrival_index, request.arrival_index)

    def choose_victim(self, running: Sequence[Request]) -> Request:
        """The one with the most left."""
        return max(running, key=self.waiting_key)

    def may_displace(self, running: Request, urgent: Request) -> bool:
        """Never: whoever runs has done work that would be lost."""
        return False
