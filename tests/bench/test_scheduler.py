"""The scheduler benchmark runs what it says."""

from __future__ import annotations

import pytest

from workbench.bench.scheduler import time_allocation, time_steps
from workbench.config import ADMISSION_POLICIES, SCHEDULING_POLICIES


@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("admission", ADMISSION_POLICIES)
def test_every_step_is_timed_while_the_running_run_and_the_waiting_wait(policy: str, admission: str):
    schedule_s, update_s = time_steps(4, 6, 10, policy, admission)

    assert (len(schedule_s), len(update_s)) == (10, 10)
    assert min(*schedule_s, *update_s) > 0


def test_allocation_is_timed():
    assert time_allocation(64) > 0
