"""The guided first run in a real browser: each step makes the real engine do something, and says what it did."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import Open, visit, wait_until
from tests.browser.running_server import RunningServer
from workbench.engine.service import EngineService
from workbench.telemetry.records import Reason

pytestmark = pytest.mark.browser


@pytest.fixture
def first_visit(tiny: tuple[EngineService, RunningServer], open_page: Open) -> Iterator[tuple[EngineService, Page]]:
    """A page that has never been visited; whatever the tour started is ended afterwards."""
    service, server = tiny
    yield service, visit(open_page, server, first_visit=True)
    for request_id in list(service._listeners):
        service.abort(request_id)
    wait_until(lambda: service.num_open_requests == 0)


def title(page: Page) -> Any:
    return page.locator("#wb-guide h2")


def told(page: Page) -> Any:
    return page.locator("#wb-guide [data-part=live]")


def do_step(page: Page) -> None:
    page.locator("#wb-guide [data-part=act]").click()


def test_tour_drives_the_engine_through_its_four_steps(first_visit: Any):
    service, page = first_visit
    expect(title(page)).to_have_text("A prompt becomes a request")
    expect(page.locator("#wb-guide [data-part=progress]")).to_have_text("1 / 4")
    do_step(page)
    wait_until(lambda: service.num_open_requests == 1)
    expect(told(page)).to_have_text(re.compile(r"^r\d+: [\d,]+ tokens computed, [\d,]+ of them its answer\.$"))
    expect(page.locator("#wb-compact-map")).to_have_class(re.compile("wb-pointed"))

    page.get_by_role("button", name="Next").click()
    expect(title(page)).to_have_text("Its context lies in blocks")
    expect(title(page)).to_be_focused()
    do_step(page)
    expect(page.get_by_role("tab", name="Blocks")).to_have_attribute("aria-selected", "true")
    expect(told(page)).to_have_text(re.compile(r"^r\d+ holds \d+ blocks\.$"))
    expect(page.locator("#wb-block-map .wb-map")).to_have_class(re.compile("wb-pointed"))
    expect(page.locator(".wb-pointed")).to_have_count(1)

    page.get_by_role("button", name="Next").click()
    do_step(page)
    expect(told(page)).to_have_text(re.compile(r"^\d+ blocks are shared: \d+ more would be needed without\.$"))

    page.get_by_role("button", name="Next").click()
    do_step(page)
    expect(told(page)).to_have_text(re.compile(r"^r\d+ made room 1× and goes on\.$"))
    reasons = [each.reason for record in service.recorder.since(-1) for each in record.explanations]
    assert Reason.REQUESTED in reasons

    page.get_by_role("button", name="Finish").click()
    expect(page.locator(".wb-guide")).to_be_hidden()
    expect(page.locator(".wb-pointed")).to_have_count(0)
    expect(page.locator("#wb-help")).to_be_focused()


def test_tour_can_be_skipped_stays_away_and_is_reopened(first_visit: Any):
    _, page = first_visit
    page.get_by_role("button", name="Skip the tour").click()
    expect(page.locator(".wb-guide")).to_be_hidden()
    page.reload()
    expect(page.locator("#wb-help")).to_be_visible()
    expect(page.locator("#wb-compact-map canvas")).to_be_visible()
    expect(page.locator(".wb-guide")).to_be_hidden()
    page.click("#wb-help")
    expect(title(page)).to_have_text("A prompt becomes a request")
    expect(title(page)).to_be_focused()
    page.get_by_text("Keys", exact=True).first.click()
    expect(page.locator("#wb-guide .wb-guide-list")).to_contain_text("follow live")


def test_tour_goes_on_at_the_step_where_it_was_left(first_visit: Any):
    _, page = first_visit
    page.get_by_role("button", name="Next").click()
    expect(title(page)).to_have_text("Its context lies in blocks")
    page.reload()
    expect(title(page)).to_have_text("Its context lies in blocks")


def test_tour_is_walked_with_the_keyboard_alone(first_visit: Any):
    service, page = first_visit
    page.locator("#wb-help").focus()
    page.keyboard.press("Enter")  # it is open: this closes it
    expect(page.locator(".wb-guide")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(title(page)).to_be_focused()
    page.keyboard.press("Tab")  # close
    page.keyboard.press("Tab")
    expect(page.locator("#wb-guide [data-part=act]")).to_be_focused()
    page.keyboard.press("Enter")
    wait_until(lambda: service.num_open_requests == 1)
    page.keyboard.press("Tab")  # Back is disabled on the first step
    page.keyboard.press("Enter")
    expect(title(page)).to_have_text("Its context lies in blocks")
    page.keyboard.press("Escape")
    expect(page.locator(".wb-guide")).to_be_hidden()
    expect(page.locator("#wb-help")).to_be_focused()


@pytest.mark.parametrize("width", [1280, 390])
def test_tour_covers_nothing_and_fits_the_page(tiny: Any, open_page: Open, width: int):
    _, server = tiny
    page = visit(open_page, server, width=width, first_visit=True)
    expect(title(page)).to_be_visible()
    guide, tabs = page.locator(".wb-guide").bounding_box(), page.locator("#wb-tabs").bounding_box()
    assert guide is not None
    assert tabs is not None
    assert guide["x"] + guide["width"] <= width
    assert guide["y"] + guide["height"] <= tabs["y"]
