"""Priority: the lowest number runs first, and takes the place of strictly less urgent ones when there is none."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.engine.request import Request


class Priority:
    """Equal priorities are served in order of arrival and never preempt each other."""

    name = "priority"

    def waiting_key(self, request: Request) -> tuple[int, int]:
        """Order by priority, then by arrival."""
        return (request.priority, request.arrival_index)

    def choose_victim(self, running: Sequence[Request]) -> Request:
        """The least urgent, of several the latest arrival."""
        return max(running, key=self.waiting_key)

    def may_displace(self, running: Request, urgent: Request) -> bool:
        """Whether a waiting request is strictly more urgent than a running one."""
        return running.priority > urgent.priority
