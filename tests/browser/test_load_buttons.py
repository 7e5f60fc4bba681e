"""The buttons beside the chat that load and disturb the engine, on a tiny model in a real browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ask, wait_for_text, wait_until
from workbench.telemetry.records import Reason

pytestmark = pytest.mark.browser


def test_burst_shares_the_blocks_of_its_prefix(chat: Any):
    service, page = chat
    before = service.recorder.latest
    most_owners = 0

    def look(record: Any) -> None:
        nonlocal most_owners
        most_owners = max(most_owners, *(block.ref_count for block in record.block_changes), 0)

    forget = service.subscribe(look)
    page.get_by_role("button", name="Shared-prefix burst").click()
    expect(page.locator("#wb-background-note")).to_contain_text("5 more follow")
    wait_until(lambda: most_owners == 6)
    wait_until(lambda: service.num_open_requests == 0)
    forget()
    records = service.recorder.since(before.step_id if before else -1)
    ended = [state for record in records for state in record.requests if state.finish_reason is not None]
    assert sorted(state.num_cached_tokens for state in ended) == [0, 320, 320, 320, 320, 320]


def test_force_preemption_makes_the_visitors_own_answer_yield_and_go_on(chat: Any):
    service, page = chat
    page.click("#wb-preempt")
    expect(page.locator("#wb-background-note")).to_contain_text("Nothing of yours runs")
    ask(page, "hello", max_tokens=2000)
    wait_for_text(page)
    page.get_by_role("button", name="Force preemption").click()
    expect(page.locator("#wb-background-note")).to_contain_text("has to make room")
    expect(page.locator(".wb-foot")).to_contain_text("preempted 1×")
    expect(page.locator(".wb-foot")).to_contain_text(re.compile(r"2,?000 out"))
    reasons = [each.reason for record in service.recorder.since(-1) for each in record.explanations]
    assert reasons.count(Reason.REQUESTED) == 1
