"""Recorded steps in the place of the live one: seek, step, follow, and what every view then shows."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from tests.browser.fake_history import FakeHistory, build_recorded_app
from tests.browser.map_page import (
    MAP,
    OpenPage,
    Serve,
    check_pixels,
    next_frame,
    open_map,
    run_simulated,
    shown_states,
    wait_for_step,
)
from tests.browser.running_server import DEADLINE_MS
from tests.server.fake_service import FakeService
from tests.server.live_client import states_in
from workbench.telemetry.records import BlockStatus, PoolSnapshot

expect.set_options(timeout=DEADLINE_MS)


def record_run(service: FakeService, num_steps: int) -> list[PoolSnapshot]:
    """Run steps and keep the pool after each: what a recorded step must show."""
    snapshots = []
    for _ in range(num_steps):
        run_simulated(service, 1)
        snapshots.append(service.pool_snapshot())
    return snapshots


def seek(page: Page, step_id: int) -> None:
    page.evaluate("step => wb.store.seek(step)", step_id)
    page.wait_for_function("step => wb.store.view().stepId === step && wb.store.cursor === step", arg=step_id)
    next_frame(page)


def check_step(page: Page, snapshot: PoolSnapshot) -> None:
    assert shown_states(page) == states_in(snapshot)
    check_pixels(page, snapshot)


def test_recorded_step_stands_in_for_the_live_one_while_live_frames_arrive(serve: Serve, open_page: OpenPage) -> None:
    history = FakeHistory(FakeService(num_blocks=64, seed=4))
    page = open_page().page
    open_map(page, serve(build_recorded_app(history)).url)
    snapshots = record_run(history.service, 60)
    wait_for_step(page, 59)
    for step_id in (30, 7, 8, 59, 0):
        seek(page, step_id)
        check_step(page, snapshots[step_id])
    assert page.evaluate("[wb.store.live.stepId, wb.store.range.first, wb.store.range.last]") == [59, 0, 59]
    snapshots += record_run(history.service, 15)
    wait_for_step(page, 74)
    check_step(page, snapshots[0])
    assert page.evaluate("wb.store.range.last") == 74
    page.evaluate("wb.store.follow()")
    next_frame(page)
    assert page.evaluate("[wb.store.cursor, wb.store.past, wb.store.view().stepId]") == [None, None, 74]
    check_step(page, snapshots[74])
    snapshots += record_run(history.service, 5)
    wait_for_step(page, 79)
    check_step(page, snapshots[79])


def test_freeze_keeps_the_step_that_was_shown(serve: Serve, open_page: OpenPage) -> None:
    history = FakeHistory(FakeService(num_blocks=64, seed=9))
    page = open_page().page
    open_map(page, serve(build_recorded_app(history)).url)
    page.evaluate("wb.store.freeze()")
    assert page.evaluate("wb.store.cursor") is None, "before the first step nothing is recorded"
    snapshots = record_run(history.service, 10)
    wait_for_step(page, 9)
    page.evaluate("wb.store.freeze()")
    record_run(history.service, 10)
    wait_for_step(page, 19)
    assert page.evaluate("[wb.store.cursor, wb.store.view().stepId]") == [9, 9]
    check_step(page, snapshots[9])
    for delta, step_id in ((-1, 8), (-1, 7), (1, 8), (-20, 0), (50, 19)):
        page.evaluate("delta => wb.store.stepBy(delta)", delta)
        page.wait_for_function("step => wb.store.view().stepId === step", arg=step_id)


def test_newest_of_many_seeks_wins(serve: Serve, open_page: OpenPage) -> None:
    history = FakeHistory(FakeService(num_blocks=64, seed=5))
    page = open_page().page
    open_map(page, serve(build_recorded_app(history)).url)
    snapshots = record_run(history.service, 50)
    wait_for_step(page, 49)
    page.evaluate("() => { for (let step = 0; step <= 40; step++) wb.store.seek(step); return wb.store.seeking; }")
    assert page.evaluate("[wb.store.cursor, wb.store.view().stepId]") == [40, 40]
    assert history.asked[-1] == 40
    assert len(history.asked) <= 2, "steps that nobody wants any more are not asked for"
    next_frame(page)
    check_step(page, snapshots[40])


def test_follow_while_a_step_is_fetched_stays_live(serve: Serve, open_page: OpenPage) -> None:
    history = FakeHistory(FakeService(num_blocks=64, seed=5))
    page = open_page().page
    open_map(page, serve(build_recorded_app(history)).url)
    record_run(history.service, 20)
    wait_for_step(page, 19)
    page.evaluate("() => { const seeking = wb.store.seek(3); wb.store.follow(); return seeking; }")
    assert history.asked == [3]
    assert page.evaluate("[wb.store.cursor, wb.store.past, wb.store.view().stepId]") == [None, None, 19]


def test_step_that_is_not_recorded_leaves_the_picture_and_says_why(serve: Serve, open_page: OpenPage) -> None:
    history = FakeHistory(FakeService(num_blocks=64, seed=5))
    watched = open_page()
    watched.expects_a_lost_server = True
    page = watched.page
    open_map(page, serve(build_recorded_app(history)).url)
    record_run(history.service, 20)
    wait_for_step(page, 19)
    history.first_step = 10
    page.evaluate("wb.store.seek(4)")
    assert page.evaluate("[wb.store.cursor, wb.store.pastError]") == [
        None,
        "step 4 is not recorded: steps 10 to 19 are",
    ]
    seek(page, 12)
    page.evaluate("wb.store.seek(5)")
    assert page.evaluate("[wb.store.cursor, wb.store.view().stepId]") == [12, 12]
    seek(page, 13)
    assert page.evaluate("wb.store.pastError") is None


def test_new_engine_ends_the_frozen_picture(serve: Serve, open_page: OpenPage) -> None:
    history = FakeHistory(FakeService(num_blocks=64, seed=5))
    page = open_page().page
    open_map(page, serve(build_recorded_app(history)).url)
    record_run(history.service, 20)
    wait_for_step(page, 19)
    seek(page, 6)
    history.service.load(48, seed=1)
    snapshots = record_run(history.service, 4)
    wait_for_step(page, 3)
    assert page.evaluate("[wb.store.cursor, wb.store.past, wb.store.range.last]") == [None, None, 3]
    check_step(page, snapshots[3])


def test_frame_of_another_server_is_not_shown(serve: Serve, open_page: OpenPage) -> None:
    history = FakeHistory(FakeService(num_blocks=64, seed=5), instance=8)
    page = open_page().page
    open_map(page, serve(build_recorded_app(history)).url)
    record_run(history.service, 20)
    wait_for_step(page, 19)
    page.evaluate("wb.store.seek(6)")
    assert page.evaluate("[wb.store.cursor, wb.store.past, wb.store.view().stepId]") == [None, None, 19]


def test_frozen_picture_keeps_the_selection_of_a_request_that_has_ended(serve: Serve, open_page: OpenPage) -> None:
    history = FakeHistory(FakeService(num_blocks=64))
    service = history.service
    name = service.engine.add(20, 3)
    page = open_page().page
    open_map(page, serve(build_recorded_app(history)).url)
    for _ in range(8):
        service.step()
    wait_for_step(page, 7)
    seek(page, 1)
    page.evaluate("name => wb.store.select(name, -1)", name)
    service.step()
    wait_for_step(page, 8)
    assert page.evaluate("[wb.store.selection.request, wb.store.litRequest().id]") == [name, name]
    page.evaluate("wb.store.follow()")
    assert page.evaluate("wb.store.selection.request") is None


# ------------------------------------------------------------------------------ the bar below the map


def bar(page: Page) -> Locator:
    return page.get_by_role("group", name="Recorded steps")


def open_recorded(serve: Serve, page: Page, num_steps: int, seed: int = 5) -> tuple[FakeHistory, list[PoolSnapshot]]:
    """A page that shows the last of so many recorded steps."""
    history = FakeHistory(FakeService(num_blocks=64, seed=seed))
    open_map(page, serve(build_recorded_app(history)).url)
    snapshots = record_run(history.service, num_steps)
    wait_for_step(page, num_steps - 1)
    return history, snapshots


def wait_for_view(page: Page, step_id: int) -> None:
    page.wait_for_function("step => wb.store.view().stepId === step", arg=step_id)
    next_frame(page)


def test_bar_freezes_steps_and_follows_live(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    _, snapshots = open_recorded(serve, page, 40)
    expect(bar(page)).to_contain_text("step 39 live")
    expect(page.locator("#wb-header [data-part=feed]")).to_have_text("live")
    expect(bar(page).get_by_role("button", name="One step forward")).to_be_disabled()
    bar(page).get_by_role("button", name="Freeze").click()
    expect(page.locator("#wb-header [data-part=feed]")).to_have_text("paused")
    for step_id in (38, 37, 36):
        bar(page).get_by_role("button", name="One step back").click()
        wait_for_view(page, step_id)
    check_step(page, snapshots[36])
    expect(bar(page)).to_contain_text("step 36 of 39 ·")
    expect(bar(page)).to_contain_text("behind live")
    bar(page).get_by_role("button", name="One step forward").click()
    wait_for_view(page, 37)
    page.evaluate("wb.store.seek(19)")
    expect(bar(page)).to_contain_text("step 19 of 39 · 1.0 s behind live")
    bar(page).get_by_role("button", name="Follow live").click()
    wait_for_view(page, 39)
    expect(page.locator("#wb-header [data-part=feed]")).to_have_text("live")
    check_step(page, snapshots[39])


def test_keys_on_the_map_freeze_step_and_follow(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    open_recorded(serve, page, 30)
    page.locator(MAP).focus()
    scrolled = page.evaluate("scrollY")
    for key, shown, cursor in ((" ", 29, 29), (",", 28, 28), (",", 27, 27), (".", 28, 28), ("f", 29, None)):
        page.keyboard.press(key)
        wait_for_view(page, shown)
        assert page.evaluate("wb.store.cursor") == cursor, key
    page.keyboard.press(",")
    wait_for_view(page, 28)
    page.keyboard.press(" ")
    wait_for_view(page, 29)
    assert page.evaluate("[wb.store.cursor, scrollY]") == [None, scrolled]


def test_scrubber_seeks_by_pointer_and_keyboard(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    _, snapshots = open_recorded(serve, page, 101)
    slider = page.get_by_role("slider", name="Recorded step")
    box = slider.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 15)
    page.mouse.down()
    wait_for_view(page, 75)
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 15)
    wait_for_view(page, 25)
    page.mouse.up()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 15)
    check_step(page, snapshots[25])
    expect(slider).to_have_attribute("aria-valuenow", "25")
    expect(slider).to_have_attribute("aria-valuemax", "100")
    slider.focus()
    for key, step_id in (("ArrowLeft", 24), ("ArrowUp", 25), ("PageUp", 35), ("Home", 0), ("ArrowLeft", 0), (".", 1)):
        page.keyboard.press(key)
        wait_for_view(page, step_id)
    page.keyboard.press("End")
    wait_for_view(page, 100)
    assert page.evaluate("wb.store.cursor") is None


def test_scrubber_seeks_by_touch(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(width=390, has_touch=True).page
    open_recorded(serve, page, 51)
    slider = page.get_by_role("slider", name="Recorded step")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + box["width"] * 0.4, box["y"] + 15)
    wait_for_view(page, 20)


def test_all_parts_of_the_tab_show_the_frozen_step(serve: Serve, open_page: OpenPage) -> None:
    """Totals, chips, strip, panels, queue, header and bottom line, while the engine goes on to something else."""
    service = FakeService(num_blocks=24)
    page = open_page().page
    open_map(page, serve(build_recorded_app(FakeHistory(service))).url)
    first, second = service.engine.add(40, 10), service.engine.add(200, 10)
    for _ in range(6):
        service.step()
    frozen, states = service.pool_snapshot(), {r.request_id: r for r in service.engine.running + service.engine.waiting}
    num_blocks = len(states[first].table)
    num_active = sum(block.status is BlockStatus.ACTIVE for block in frozen.blocks)
    wait_for_step(page, 5)
    page.evaluate("wb.store.freeze()")
    page.evaluate("name => wb.store.select(name, 0)", first)
    wait_for_view(page, 5)
    assert {first, second} <= set(states)
    while service.engine.running or service.engine.waiting:
        service.step()
    service.engine.add(100, 100)
    service.step()
    last = service.engine.step_id
    wait_for_step(page, last)
    assert shown_states(page) == states_in(frozen)
    blocks = page.locator("#wb-block-map")
    expect(blocks.locator("[data-part=active]")).to_have_text(str(num_active))
    expect(blocks.locator("[data-part=chips] .wb-chip").first).to_contain_text(first)
    expect(blocks.locator("[data-part=stripTitle]")).to_have_text(f"{first} block table: logical → physical")
    expect(blocks.locator("[data-part=stripNote]")).to_contain_text(f"{num_blocks} blocks")
    expect(page.get_by_label("Request details")).to_contain_text(f"Request {first}")
    expect(page.get_by_label("Block details")).to_contain_text("Tokens 0–15: shown live only")
    expect(blocks.locator("[data-part=tokens]")).to_be_hidden()
    expect(page.locator("#wb-header [data-part=queue]")).to_have_text("2 / 0")
    page.evaluate("step => wb.store.seek(step)", last)
    wait_for_view(page, last)
    expect(page.get_by_label("Request details")).to_contain_text(f"It is not in the engine at step {last}.")


def test_hit_rate_is_that_of_the_shown_step(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    page = open_page().page
    open_map(page, serve(build_recorded_app(FakeHistory(service))).url)
    rate, tokens = (page.locator(f"#wb-block-map [data-part={name}]") for name in ("hitRate", "hitTokens"))
    service.step()
    wait_for_step(page, 0)
    expect(rate).to_have_text("–")
    expect(tokens).to_have_text("")
    for prompt in (40, 50, 20):
        service.engine.add(prompt, 2, "system")
        service.step()
    wait_for_step(page, 3)
    expect(rate).to_have_text("43.6 %")
    expect(tokens).to_have_text("of 110")
    for step_id, shown in ((2, "35.6 %"), (1, "0.0 %"), (0, "–")):
        seek(page, step_id)
        expect(rate).to_have_text(shown)
    page.evaluate("wb.store.follow()")
    expect(rate).to_have_text("43.6 %")


def test_stepping_flashes_what_the_step_allocated_freed_and_moved(serve: Serve, open_page: OpenPage) -> None:
    history = FakeHistory(FakeService(num_blocks=64))
    service = history.service
    page = open_page(reduced_motion="no-preference").page
    open_map(page, serve(build_recorded_app(history)).url)
    service.engine.add(40, 100)
    service.step()
    service.engine.add(20, 100)
    service.step()
    service.engine.fork("r1")
    service.step()
    wait_for_step(page, 2)
    tables = {request.request_id: request.table for request in service.engine.running}
    assert tables == {"r1": [0, 1, 5], "r2": [3, 4], "r1.1": [0, 1, 2]}
    seek(page, 0)
    page.wait_for_function("wb.store.flashes.size === 0")
    page.evaluate("""() => { const flash = wb.store.flash; window.flashed = [];
        wb.store.flash = (...given) => { flash.apply(wb.store, given); window.flashed = [...wb.store.flashes]
          .map(([block, { kind }]) => [block, kind]).sort((a, b) => a[0] - b[0]); }; }""")
    seek(page, 1)
    assert page.evaluate("window.flashed") == [[3, "turned"], [4, "turned"]]
    seek(page, 2)
    assert page.evaluate("window.flashed") == [[5, "copy"]]
    expect(page.locator("#wb-block-map [data-part=trafficRows] p")).to_have_text(
        ["step 2: r1 copied block 2 → 5 before writing"]
    )
    page.wait_for_function("wb.store.flashes.size === 0")
    seek(page, 1)
    assert page.evaluate("window.flashed") == [[5, "turned"]]
    expect(page.locator("#wb-block-map [data-part=trafficNone]")).to_have_text("Nothing moved in this step.")
    page.wait_for_function("wb.store.flashes.size === 0")
    page.evaluate("window.flashed = null")
    page.evaluate("wb.store.follow()")
    wait_for_view(page, 2)
    service.engine.add(20, 100)
    seek(page, 0)
    assert page.evaluate("window.flashed") is None, "a jump over several steps flashes nothing"
    service.step()
    wait_for_step(page, 3)
    assert page.evaluate("[window.flashed, wb.store.flashes.size]") == [None, 0], "nor does what happens behind it"


def test_frozen_step_keeps_its_colours_when_the_server_is_lost(serve: Serve, open_page: OpenPage) -> None:
    history = FakeHistory(FakeService(num_blocks=64, seed=4))
    watched = open_page()
    watched.expects_a_lost_server = True
    page = watched.page
    server = serve(build_recorded_app(history))
    open_map(page, server.url)
    snapshots = record_run(history.service, 20)
    wait_for_step(page, 19)
    seek(page, 11)
    server.stop()
    expect(page.locator("#wb-header [data-part=feed]")).to_contain_text("stale")
    next_frame(page)
    check_step(page, snapshots[11])
    page.evaluate("wb.store.seek(5)")
    expect(bar(page).locator(".wb-failed")).to_be_visible()
    assert page.evaluate("[wb.store.cursor, wb.store.view().stepId]") == [11, 11]
    page.evaluate("wb.store.follow()")
    expect(page.locator("#wb-block-map .wb-stale, #wb-block-map.wb-stale").first).to_be_attached()
