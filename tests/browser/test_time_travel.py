"""Recorded steps in the place of the live one: seek, step, follow, and what every view then shows."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.conftest import DEADLINE_MS
from tests.browser.fake_history import FakeHistory, build_recorded_app
from tests.browser.map_page import (
    OpenPage,
    Serve,
    check_pixels,
    next_frame,
    open_map,
    run_simulated,
    shown_states,
    wait_for_step,
)
from tests.server.fake_service import FakeService
from tests.server.live_client import states_in
from workbench.telemetry.records import PoolSnapshot

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
