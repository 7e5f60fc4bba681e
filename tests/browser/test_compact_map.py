"""The compact map beside the chat shows the newest step, whatever step the other tabs look at."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.fake_history import FakeHistory, build_recorded_app
from tests.browser.map_page import OpenPage, Serve, next_frame, open_map, shown_states, wait_for_step
from tests.browser.running_server import DEADLINE_MS
from tests.server.fake_service import FakeService
from tests.server.live_client import states_in

expect.set_options(timeout=DEADLINE_MS)

PICTURE = "() => document.querySelector('#wb-compact-map canvas').toDataURL()"


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()
    next_frame(page)


def test_compact_map_shows_the_newest_step_while_the_other_tabs_stand_at_an_earlier_one(
    serve: Serve, open_page: OpenPage
) -> None:
    history = FakeHistory(FakeService(num_blocks=64))
    service = history.service
    page = open_page().page
    open_map(page, serve(build_recorded_app(history)).url)
    service.step()
    service.engine.add(40, 6)
    service.step()
    early = service.pool_snapshot()
    wait_for_step(page, 1)
    open_tab(page, "Chat")
    compact = page.locator("#wb-compact-map")
    page.get_by_label("Follow").fill("r1")
    page.get_by_label("Follow").press("Enter")
    expect(compact.locator(".wb-phase .wb-on")).to_have_text("decode 1")
    expect(compact.locator("[data-part=moment]")).to_be_hidden()

    page.evaluate("() => wb.store.seek(0)")
    page.wait_for_function("() => wb.store.view().stepId === 0")
    next_frame(page)
    expect(compact.locator(".wb-phase .wb-on")).to_have_text("decode 1")
    expect(compact).to_contain_text("3 of 64")
    before = page.evaluate(PICTURE)
    service.engine.add(90, 6)
    service.step()
    wait_for_step(page, 2)
    expect(compact.locator(".wb-phase .wb-on")).to_have_text("decode 2")
    expect(compact.locator("[data-part=moment]")).to_have_text("Newest step, 2. Blocks and Timeline stand at step 0.")
    assert page.evaluate(PICTURE) != before, "the second request's blocks are seen"

    page.evaluate("() => wb.store.seek(1)")
    page.wait_for_function("() => wb.store.view().stepId === 1")
    open_tab(page, "Blocks")
    assert shown_states(page) == states_in(early)


def test_opening_the_block_map_from_beside_the_chat_shows_what_is_so_now(serve: Serve, open_page: OpenPage) -> None:
    history = FakeHistory(FakeService(num_blocks=64))
    service = history.service
    page = open_page().page
    open_map(page, serve(build_recorded_app(history)).url)
    service.step()
    service.engine.add(40, 6)
    service.step()
    wait_for_step(page, 1)
    open_tab(page, "Chat")
    page.get_by_label("Follow").fill("r1")
    page.get_by_label("Follow").press("Enter")
    expect(page.locator("#wb-compact-map")).to_contain_text("Your request r1")
    page.evaluate("() => wb.store.seek(0)")
    page.wait_for_function("() => wb.store.view().stepId === 0")
    page.get_by_role("button", name="Open in the block map").click()
    next_frame(page)
    assert page.evaluate("() => [wb.store.cursor, wb.store.view().stepId, wb.store.selection.request]") == [
        None,
        1,
        "r1",
    ]
