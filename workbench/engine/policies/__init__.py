"""Scheduling policies: in which order requests wait, and who yields when blocks run out.

To add one: a file with a class that fulfils `SchedulingPolicy`, one line in `POLICIES`, and its
name in `workbench.config.SCHEDULING_POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from workbench.engine.policies.fcfs import FirstComeFirstServed
from workbench.engine.policies.priority import Priority
from workbench.engine.policies.sjf import ShortestJobFirst
from workbench.engine.request import Request


class SchedulingPolicy(Protocol):
    """Pure choices over requests; a policy changes nothing."""

    name: str

    def waiting_key(self, request: Request) -> Any:
        """Return a sort key: the request with the smallest is admitted first."""

    def choose_victim(self, running: Sequence[Request]) -> Request:
        """Return the running request to preempt when a running one needs blocks. `running` is never empty."""

    def may_displace(self, running: Request, urgent: Request) -> bool:
        """Whether a running request may be preempted so that a waiting one can start."""


POLICIES: dict[str, Callable[[], SchedulingPolicy]] = {
    each.name: each for each in (FirstComeFirstServed, Priority, ShortestJobFirst)
}
"""Every policy by its configuration name."""
