"""First come, first served: arrival order decides, and the latest arrival yields."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.engine.request import Request


class FirstComeFirstServed:
    """A preempted request keeps its arrival, so it stands first again among those who wait."""

    name = "fcfs"

    def waiting_key(self, request: Request) -> int:
        """Order by arrival."""
        return request.arrival_index

    def choose_victim(self, running: Sequence[Request]) -> Request:
        """The latest arrival: it has done the least work and waited the least."""
        return max(running, key=lambda request: request.arrival_index)

    def may_displace(self, running: Request, urgent: Request) -> bool:
        """Never: whoever runs arrived before."""
        return False
