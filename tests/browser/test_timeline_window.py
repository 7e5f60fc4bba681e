"""The timeline's window in a real browser moves as told, and shares one cursor with the other views.

What is expected comes from the engine's own records, never from the history that the page read.
"""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.map_page import OpenPage, Serve, shown_states
from tests.browser.running_server import DEADLINE_MS
from tests.browser.timeline_page import (
    CANVAS,
    VIEW,
    build_timeline_app,
    click,
    middle_of_row,
    open_timeline,
    part,
    pixel,
    preemptions,
    read,
    show_row,
    wait_for_history,
)
from tests.server.fake_service import FakeService
from tests.server.live_client import states_in
from workbench.telemetry.records import StepRecord

pytestmark = pytest.mark.browser
expect.set_options(timeout=DEADLINE_MS)

CURSOR = (255, 255, 255)
"""Of the dark palette, as NOTES.md gives it."""


def test_click_on_a_row_selects_step_and_request_for_all_views(
    shown_run: tuple[Page, list[StepRecord]], timeline_run: Any
) -> None:
    page, records = shown_run
    service, _ = timeline_run
    step, name = preemptions(records)[0]
    x, place = show_row(page, name, step - 3)
    click(page, x + 3, middle_of_row(place))
    page.wait_for_function("step => wb.store.past && wb.store.past.stepId === step", arg=step - 3)
    assert page.evaluate("[wb.store.cursor, wb.store.selection.request]") == [step - 3, name]
    expect(part(page, "stepName")).to_have_text(f"{step - 3:,}")
    expect(part(page, "lifeName")).to_have_text(name)
    part(page, "toMap").click()
    page.locator("#wb-block-map canvas[data-part=map]").wait_for(state="visible")
    blocks = service.recorder.blocks_at(step - 3)
    snapshot = service.pool_snapshot()
    expected = states_in(type(snapshot)(step - 3, 16, tuple(blocks[b] for b in sorted(blocks)), snapshot.epoch))
    assert [s for s in shown_states(page) if s[0]] == [s for s in expected if s[0]]


def test_cursor_moved_elsewhere_comes_into_the_window(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown_run
    read(page, "(v.axis.show(v.history.last - 20, v.history.last + 1), v.redraw())")
    page.evaluate("step => wb.store.seek(step)", records[5].step_id)
    page.wait_for_function(f"() => {VIEW}.axis.visible()[0] <= {records[5].step_id}")
    x = read(page, f"v.axis.x({records[5].step_id})")
    assert pixel(page, round(x), 400) == CURSOR, "the cursor's line"
    part(page, "stepOn").click()
    page.wait_for_function("step => wb.store.cursor === step", arg=records[6].step_id)
    expect(part(page, "following")).to_have_text(f"frozen at step {records[6].step_id:,}")


def test_ended_request_that_was_chosen_elsewhere_is_shown_when_the_tab_opens(
    timeline_run: Any, serve: Serve, open_page: OpenPage
) -> None:
    """As a click on an answer's figures does: the request is over, and the timeline was never open."""
    service, records = timeline_run
    ended = {s.request_id: r.step_id for r in records for s in r.requests if s.status.is_terminal}
    name, step = next(iter(ended.items()))
    page = open_page().page
    page.goto(f"{serve(build_timeline_app(service, 'other')).url}/?__theme=dark")
    page.wait_for_function("window.wb && wb.store.live.stepId >= 0")
    page.evaluate("([name, step]) => { wb.store.select(name, -1); wb.store.seek(step); }", [name, step])
    page.wait_for_function("wb.store.past !== null")
    page.get_by_role("tab", name="Timeline").click()
    wait_for_history(page, records[-1].step_id)
    expect(part(page, "lifeName")).to_have_text(name)
    expect(part(page, "lifeRows")).to_contain_text(f"step {step:,}, finished")
    first, last = read(page, "v.axis.visible()")
    assert first <= step <= last
    row, top, count = read(page, f"[v.rows.findIndex(r => r.id === '{name}'), v.layout.firstRow, v.layout.numRows]")
    assert top <= row < top + count


def test_window_follows_live_until_it_is_moved_or_frozen(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=192, seed=3)
    for _ in range(300):
        service.engine.act_at_random()
        service.step()
    page = open_page().page
    open_timeline(page, serve(build_timeline_app(service)).url)
    wait_for_history(page, 299)
    assert read(page, "v.axis.to") == 300
    service.step()
    wait_for_history(page, 300)
    assert read(page, "v.axis.to") == 301
    page.locator(CANVAS).focus()
    page.keyboard.press("Space")
    page.wait_for_function("wb.store.cursor === 300")
    service.step()
    wait_for_history(page, 301)
    assert read(page, "v.axis.to") == 301
    page.keyboard.press("f")
    page.wait_for_function("wb.store.cursor === null")
    assert read(page, "v.axis.to") == 302
    page.keyboard.press("ArrowLeft")
    window = read(page, "[v.axis.from, v.axis.to]")
    assert window[1] < 302
    service.step()
    wait_for_history(page, 302)
    assert read(page, "[v.axis.from, v.axis.to]") == window
    expect(part(page, "following")).to_contain_text("steps behind live")
    part(page, "freeze").click()
    page.wait_for_function(f"() => {VIEW}.axis.to === 303")


def drag(page: Page, x: float, y: float, to_x: float) -> None:
    box = page.locator(CANVAS).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.mouse.down()
    page.mouse.move(box["x"] + (x + to_x) / 2, box["y"] + y)
    page.mouse.move(box["x"] + to_x, box["y"] + y)
    page.mouse.up()


def test_drag_pans_by_the_pixels_it_went_and_is_no_click(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, _ = shown_run
    read(page, "(v.axis.show(60, 110), v.redraw())")
    before = read(page, "[v.axis.from, v.axis.to, v.axis.pixelsPerUnit]")
    drag(page, 400, 200, 460)
    after = read(page, "[v.axis.from, v.axis.to]")
    assert after == [pytest.approx(before[0] - 60 / before[2]), pytest.approx(before[1] - 60 / before[2])]
    assert page.evaluate("wb.store.cursor") is None


def test_wheel_zooms_around_the_step_under_the_pointer(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, _ = shown_run
    read(page, "(v.axis.show(40, 120), v.redraw())")
    before = read(page, "[v.axis.placeAt(300), v.axis.span]")
    page.locator(CANVAS).hover(position={"x": 300, "y": 200})
    page.mouse.wheel(0, -400)
    page.wait_for_function(f"span => {VIEW}.axis.span < span", arg=before[1])
    assert read(page, "v.axis.placeAt(300)") == pytest.approx(before[0])
    part(page, "zoomOut").click()
    page.locator(CANVAS).press("0")
    assert read(page, "[v.axis.from, v.axis.to]") == read(page, "[v.history.first, v.history.last + 1]")


def test_two_fingers_pinch_and_a_tap_selects(timeline_run: Any, serve: Serve, open_page: OpenPage) -> None:
    service, records = timeline_run
    page = open_page(width=390, has_touch=True).page
    open_timeline(page, serve(build_timeline_app(service)).url)
    wait_for_history(page, records[-1].step_id)
    read(page, "(v.axis.show(60, 100), v.redraw())")
    box = page.locator(CANVAS).bounding_box()
    assert box is not None
    touch = page.context.new_cdp_session(page)

    def fingers(kind: str, *places: float) -> None:
        points = [{"x": box["x"] + x, "y": box["y"] + 60, "id": i} for i, x in enumerate(places)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    middle = read(page, "v.axis.placeAt(200)")
    fingers("touchStart", 180)
    fingers("touchStart", 180, 220)
    for spread in (30, 40):
        fingers("touchMove", 200 - spread, 200 + spread)
    fingers("touchEnd")
    assert read(page, "v.axis.span") == pytest.approx(20)
    assert read(page, "v.axis.placeAt(200)") == pytest.approx(middle)
    assert page.evaluate("wb.store.cursor") is None
    page.touchscreen.tap(box["x"] + 200, box["y"] + 60)
    page.wait_for_function("wb.store.cursor !== null")
    assert page.evaluate("wb.store.cursor") == int(middle)


def test_brush_of_the_minimap_moves_and_resizes_the_window(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, _ = shown_run
    read(page, "(v.axis.show(60, 100), v.redraw())")
    layout = read(page, "v.layout")
    y = layout["minimapTop"] + 16
    x = read(page, "[60, 80, 100, 30].map(s => v.minimap.x(v.history, v.layout, s))")
    drag(page, x[1], y, x[1] + 40)
    moved = 40 * read(page, "v.history.numSteps") / layout["plotWidth"]
    assert read(page, "[v.axis.from, v.axis.to]") == [pytest.approx(60 + moved), pytest.approx(100 + moved)]
    read(page, "(v.axis.show(60, 100), v.redraw())")
    drag(page, x[2], y, x[2] + 40)
    assert read(page, "[v.axis.from, v.axis.to]") == [60, pytest.approx(100 + moved, abs=0.5)]
    click(page, x[3], y)
    assert read(page, "(v.axis.from + v.axis.to) / 2") == pytest.approx(30, abs=1)


def test_wall_time_places_steps_by_their_clock(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown_run
    part(page, "showAll").click()
    page.get_by_role("radio", name="Wall time").click()
    expect(page.get_by_role("radio", name="Wall time")).to_have_attribute("aria-checked", "true")
    part(page, "showAll").click()
    start, end = records[0].started_s, records[-1].started_s + records[-1].duration_s
    left, width = read(page, "[v.axis.left, v.axis.width]")
    for record in records[:: len(records) // 6]:
        expected = left + width * (record.started_s - start) / (end - start)
        assert read(page, f"v.axis.x({record.step_id})") == pytest.approx(expected, abs=0.01)
        assert read(page, f"v.axis.stepAt({expected + 0.001})") == record.step_id
    page.get_by_role("radio", name="Steps", exact=True).click()
    assert read(page, "v.axis.visible()") == [records[0].step_id, records[-1].step_id]
