"""The timeline in a real browser shows what the records say, moves as told, and shares one cursor with the map.

What is expected comes from the engine's own records, never from the history that the page read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.map_page import OpenPage, Serve, run_steps, shown_states, submit_random
from tests.browser.running_server import DEADLINE_MS
from tests.browser.timeline_page import (
    CANVAS,
    VIEW,
    build_timeline_app,
    click,
    open_timeline,
    part,
    pixel,
    read,
    wait_for_history,
)
from tests.server.fake_service import FakeService
from tests.server.live_client import states_in
from workbench.config import EngineConfig
from workbench.engine.service import EngineService
from workbench.telemetry.records import Decision, RequestState, RequestStatus, StepRecord
from workbench.ui.explain import explain

pytestmark = pytest.mark.browser
expect.set_options(timeout=DEADLINE_MS)

PREFILL, DECODE, PREEMPTED, CURSOR = (79, 157, 232), (154, 167, 181), (255, 111, 174), (255, 255, 255)
"""Of the dark palette, as NOTES.md gives it."""
WAITED, COMPUTED, DECODED, HELD, HELD_SWAPPED = range(5)


@contextmanager
def recorded_run(
    model: Path, num_steps: int = 150, **settings: Any
) -> Iterator[tuple[EngineService, list[StepRecord]]]:
    """A real engine held after a run in which two dozen requests fought for 80 blocks, and its records."""
    sizes = {"num_blocks": 80, "max_num_batched_tokens": 64, "max_num_seqs": 16, "check_integrity": True}
    service = EngineService(EngineConfig(model=str(model), **{**sizes, **settings}))
    service.start()
    try:
        service.wait_ready(100)
        service.pause()
        rng = random.Random(7)
        for _ in range(3):
            submit_random(service, rng, 8)
            run_steps(service, num_steps // 3)
        yield service, service.recorder.since(-1)
    finally:
        service.shutdown()


@pytest.fixture(scope="module")
def run(tiny_model: Path) -> Iterator[tuple[EngineService, list[StepRecord]]]:
    with recorded_run(tiny_model) as (service, records):
        assert any(e.decision is Decision.PREEMPTED for r in records for e in r.explanations)
        yield service, records


@pytest.fixture
def shown(
    run: tuple[EngineService, list[StepRecord]], serve: Serve, open_page: OpenPage
) -> tuple[Page, list[StepRecord]]:
    """The page over the run, with its whole history read."""
    service, records = run
    page: Page = open_page().page
    open_timeline(page, serve(build_timeline_app(service)).url)
    wait_for_history(page, records[-1].step_id)
    return page, records


def kind_of(state: RequestState) -> int:
    if state.status is RequestStatus.SWAPPED:
        return HELD_SWAPPED
    if state.status is RequestStatus.PREEMPTED:
        return HELD
    if not state.num_scheduled_tokens:
        return WAITED
    return COMPUTED if state.is_prefill else DECODED


def preemptions(records: list[StepRecord]) -> list[tuple[int, str]]:
    """Step and request of each preemption."""
    return [(r.step_id, e.request_id) for r in records for e in r.explanations if e.decision is Decision.PREEMPTED]


# ------------------------------------------------------------------------------ the records


def test_tracks_hold_the_figures_of_the_records(shown: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown
    names = ["scheduled", "prefill", "decode", "budget", "running", "waiting", "active", "cached", "preempted"]
    rows = read(
        page,
        f"Array.from({{length: v.history.numSteps}}, (_, i) => {names}.map(n => v.history.at(n, v.history.first + i)))",
    )
    preempted = [step for step, _ in preemptions(records)]
    assert rows == [
        [
            r.num_scheduled_tokens,
            r.num_prefill_tokens,
            r.num_decode_tokens,
            r.max_num_batched_tokens,
            r.num_running,
            r.num_waiting,
            r.num_active_blocks,
            r.num_cached_blocks,
            preempted.count(r.step_id),
        ]
        for r in records
    ]
    times = read(page, "Array.from({length: v.history.numSteps}, (_, i) => v.history.startOf(v.history.first + i))")
    assert times == [r.started_s for r in records]


def test_rows_hold_what_each_request_did_in_each_step(shown: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown
    rows = read(page, "v.history.ordered.map(r => [r.id, r.kinds, r.from, r.to, r.endedAt, r.preemptedAt])")
    assert len(rows) == 24
    told: dict[str, dict[int, int]] = {}
    ends: dict[str, int] = {}
    for record in records:
        for state in record.requests:
            told.setdefault(state.request_id, {})[record.step_id] = kind_of(state)
            if state.status.is_terminal:
                ends[state.request_id] = record.step_id
    for name, kinds, first, last, ended, preempted in rows:
        steps = {step: kind for kind, a, b in zip(kinds, first, last, strict=True) for step in range(a, b + 1)}
        assert steps == told[name], name
        assert ended == ends.get(name, -1)
        assert preempted == [step for step, of in preemptions(records) if of == name]
    arrivals = {s.request_id: s.arrival_time_s for r in records for s in r.requests}
    assert [name for name, *_ in rows] == sorted(arrivals, key=lambda name: arrivals[name])


def test_pixels_of_rows_and_tracks_show_the_records(shown: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown
    by_step = {r.step_id: r for r in records}
    seen = dict.fromkeys((COMPUTED, DECODED), 0)
    names = read(page, "v.rows.slice(v.layout.firstRow, v.layout.firstRow + v.layout.numRows).map(r => r.id)")
    first, last = read(page, "v.axis.visible()")
    middles = read(
        page,
        f"Array.from({{length: {last - first + 1}}}, (_, i) => (v.axis.x({first} + i) + v.axis.endX({first} + i)) / 2)",
    )
    for step, x in zip(range(first, last + 1), middles, strict=True):
        record = by_step[step]
        unit = (54 - 8) / 64
        heights = {PREFILL: record.num_prefill_tokens * unit, DECODE: record.num_decode_tokens * unit}
        column = page.evaluate(
            f"""x => {{ const g = document.querySelector('{CANVAS}').getContext('2d');
            const pixels = g.getImageData(x, 18, 1, 54).data;
            return Array.from({{length: 54}}, (_, i) => [...pixels.slice(4 * i, 4 * i + 3)]); }}""",
            int(x),
        )
        for color, height in heights.items():
            assert abs(sum(tuple(p) == color for p in column) - height) <= 3, (step, color)
        states = {state.request_id: state for state in record.requests}
        for place, name in enumerate(names):
            if name in states and kind_of(states[name]) in seen:
                kind = kind_of(states[name])
                seen[kind] += 1
                assert pixel(page, x, middle_of_row(place)) == (PREFILL if kind == COMPUTED else DECODE), (step, name)
    assert min(seen.values()) > 20


def middle_of_row(place: int) -> float:
    """Vertical middle of a shown row on a wide page: rows of 20 px from 146 px on."""
    return 146 + 20 * place + 10


def show_row(page: Page, name: str, step: int) -> tuple[float, int]:
    """Bring a request's row and a step into the window. Returns the step's left pixel and the row's place."""
    part(page, "find").fill(name)
    read(page, f"(v.axis.show({step} - 20, {step} + 20), v.redraw())")
    names = read(page, "v.rows.slice(v.layout.firstRow).map(r => r.id)")
    return read(page, f"v.axis.x({step})"), names.index(name)


def test_preemption_has_a_notch_and_an_arrow_at_its_resumption(shown: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown
    resumed = [(r.step_id, e.request_id) for r in records for e in r.explanations if e.decision is Decision.RESUMED]
    for step, name in preemptions(records)[:4]:
        x, place = show_row(page, name, step)
        assert pixel(page, x + 0.5, middle_of_row(place) - 7) == PREEMPTED, (step, name)
        back = next((s for s, of in resumed if of == name and s > step), None)
        if back is not None:
            end, place = show_row(page, name, back)
            assert pixel(page, end - 5, middle_of_row(place)) == PREEMPTED, (back, name)
    part(page, "find").fill("")


def test_swapped_request_has_a_mark_of_its_own(tiny_model: Path, serve: Serve, open_page: OpenPage) -> None:
    with recorded_run(tiny_model, preemption_mode="swap", swap_space=0.01) as (service, records):
        page = open_page().page
        open_timeline(page, serve(build_timeline_app(service)).url)
        wait_for_history(page, records[-1].step_id)
        step, name = preemptions(records)[0]
        state = next(s for r in records if r.step_id == step for s in r.requests if s.request_id == name)
        assert state.status is RequestStatus.SWAPPED
        x, place = show_row(page, name, step)
        box = round(x) + 2
        assert pixel(page, box, middle_of_row(place) + 3) == PREEMPTED
        click(page, x + 2, middle_of_row(place))
        expect(page.get_by_label("Step inspector")).to_contain_text("blocks to host memory")


# ------------------------------------------------------------------------------ one linked cursor


def test_click_on_a_row_selects_step_and_request_for_all_views(shown: tuple[Page, list[StepRecord]], run: Any) -> None:
    page, records = shown
    service, _ = run
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


def test_cursor_moved_elsewhere_comes_into_the_window(shown: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown
    read(page, "(v.axis.show(v.history.last - 20, v.history.last + 1), v.redraw())")
    page.evaluate("step => wb.store.seek(step)", records[5].step_id)
    page.wait_for_function(f"() => {VIEW}.axis.visible()[0] <= {records[5].step_id}")
    x = read(page, f"v.axis.x({records[5].step_id})")
    assert pixel(page, round(x), 400) == CURSOR, "the cursor's line"
    part(page, "stepOn").click()
    page.wait_for_function("step => wb.store.cursor === step", arg=records[6].step_id)
    expect(part(page, "following")).to_have_text(f"frozen at step {records[6].step_id:,}")


def test_ended_request_that_was_chosen_elsewhere_is_shown_when_the_tab_opens(
    run: Any, serve: Serve, open_page: OpenPage
) -> None:
    """As a click on an answer's figures does: the request is over, and the timeline was never open."""
    service, records = run
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


# ------------------------------------------------------------------------------ the window


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


def test_drag_pans_by_the_pixels_it_went_and_is_no_click(shown: tuple[Page, list[StepRecord]]) -> None:
    page, _ = shown
    read(page, "(v.axis.show(60, 110), v.redraw())")
    before = read(page, "[v.axis.from, v.axis.to, v.axis.pixelsPerUnit]")
    drag(page, 400, 200, 460)
    after = read(page, "[v.axis.from, v.axis.to]")
    assert after == [pytest.approx(before[0] - 60 / before[2]), pytest.approx(before[1] - 60 / before[2])]
    assert page.evaluate("wb.store.cursor") is None


def test_wheel_zooms_around_the_step_under_the_pointer(shown: tuple[Page, list[StepRecord]]) -> None:
    page, _ = shown
    read(page, "(v.axis.show(40, 120), v.redraw())")
    before = read(page, "[v.axis.placeAt(300), v.axis.span]")
    page.locator(CANVAS).hover(position={"x": 300, "y": 200})
    page.mouse.wheel(0, -400)
    page.wait_for_function(f"span => {VIEW}.axis.span < span", arg=before[1])
    assert read(page, "v.axis.placeAt(300)") == pytest.approx(before[0])
    part(page, "zoomOut").click()
    page.locator(CANVAS).press("0")
    assert read(page, "[v.axis.from, v.axis.to]") == read(page, "[v.history.first, v.history.last + 1]")


def test_two_fingers_pinch_and_a_tap_selects(run: Any, serve: Serve, open_page: OpenPage) -> None:
    service, records = run
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


def test_brush_of_the_minimap_moves_and_resizes_the_window(shown: tuple[Page, list[StepRecord]]) -> None:
    page, _ = shown
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


def test_wall_time_places_steps_by_their_clock(shown: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown
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


# ------------------------------------------------------------------------------ filters, inspector, request


def test_filters_keep_the_rows_that_they_name(shown: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown
    part(page, "showAll").click()
    last = {state.request_id: state for record in records for state in record.requests}
    arrivals = sorted(last, key=lambda name: last[name].arrival_time_s)

    def rows() -> list[str]:
        names: list[str] = read(page, "v.rows.map(r => r.id)")
        return names

    def choose(name: str) -> None:
        page.get_by_role("radio", name=name, exact=True).click()

    assert rows() == arrivals
    choose("Finished")
    assert rows() == [name for name in arrivals if last[name].status.is_terminal]
    choose("Running")
    assert rows() == [name for name in arrivals if not last[name].status.is_terminal]
    choose("Preempted")
    preempted = {name for _, name in preemptions(records)}
    assert rows() == [name for name in arrivals if name in preempted]
    choose("All")
    part(page, "find").fill("1")
    assert rows() == [name for name in arrivals if "1" in name]
    part(page, "find").fill("no such")
    expect(part(page, "empty")).to_have_text("No request in this part of the run matches the filter.")
    part(page, "find").fill("")
    part(page, "onlyMine").check()
    page.evaluate("name => wb.store.setMine(name)", arrivals[2])
    assert rows() == [arrivals[2]]


def test_long_queue_leaves_those_that_run_in_sight(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    for _ in range(64):  # 24 of them may run at a time
        service.engine.add(2, 50)
    last = service.step().step_id
    page = open_page().page
    open_timeline(page, serve(build_timeline_app(service)).url)
    wait_for_history(page, last)
    assert [request.request_id for request in service.engine.running] == [f"r{i}" for i in range(1, 25)]
    shown_rows = "v.rows.slice(v.layout.firstRow, v.layout.firstRow + v.layout.numRows).map(r => r.id)"
    assert read(page, shown_rows)[-5:] == ["r24", "r25", "r26", "r27", "r28"]
    page.locator(CANVAS).hover(position={"x": 40, "y": 300})
    page.mouse.wheel(0, 4000)
    page.wait_for_function(
        f"() => {{ const v = {VIEW}; return v.rows.length - v.layout.firstRow === v.layout.numRows; }}"
    )
    page.mouse.wheel(0, -80)
    page.wait_for_function(f"() => {VIEW}.shownBelow === 2")


def reasons(page: Page) -> list[str]:
    """The lines of the inspector as whole sentences."""
    more = part(page, "reasonsMore")
    if more.is_visible() and more.get_attribute("aria-expanded") == "false":
        more.click()
    lines = part(page, "reasons").locator("> div").all()
    return [
        f"{line.locator('.wb-why-label').inner_text().lower()}: {line.locator('p > span').inner_text()}"
        for line in lines
        if line.locator(".wb-who-row").is_visible()
    ]


def test_inspector_tells_the_decisions_of_the_record(shown: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown
    step = preemptions(records)[0][0]
    wanted = [
        step,
        step + 1,
        next(r.step_id for r in records if any(e.decision is Decision.CHUNKED for e in r.explanations)),
    ]
    by_step = {record.step_id: record for record in records}
    for step_id in wanted:
        page.evaluate("step => wb.store.seek(step)", step_id)
        record = by_step[step_id]
        panel = page.get_by_label("Step inspector")
        expect(part(page, "stepName")).to_have_text(f"{step_id:,}")
        expect(panel).to_contain_text("Waste")  # the answer of the server is there
        assert reasons(page) == [explain(e) for e in record.explanations]
        figures = dict(zip(*[panel.locator(f"dl {tag}").all_inner_texts() for tag in ("dt", "dd")], strict=True))
        assert figures["Tokens scheduled"] == f"{record.num_scheduled_tokens} / 64"
        assert figures["Running / waiting"] == f"{record.num_running} / {record.num_waiting}"
        assert figures["Free after step"].startswith(f"{80 - record.num_active_blocks} blocks")


def test_request_panel_counts_what_the_records_tell(shown: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown
    preempted = [name for _, name in preemptions(records)]
    last = {state.request_id: state for record in records for state in record.requests}
    name = next(n for n in preempted if last[n].num_output_tokens)
    states = [(r, s) for r in records for s in r.requests if s.request_id == name]
    chunks = [s.num_scheduled_tokens for _, s in states if s.is_prefill and s.num_scheduled_tokens]
    first = next(r for r, s in states if s.num_new_tokens)
    part(page, "find").fill(name)
    page.locator(CANVAS).focus()
    part(page, "showAll").click()
    x, place = 30, read(page, "v.rows.findIndex(r => r.id === '" + name + "')")
    click(page, x, middle_of_row(place))
    panel = page.get_by_label("Request timeline")
    expect(part(page, "lifeName")).to_have_text(name)
    told = dict(zip(*[panel.locator(f"dl {tag}").all_inner_texts() for tag in ("dt", "dd")], strict=True))
    assert told["Arrived"] == f"step {states[0][0].step_id}"
    assert told["Prefill"] == f"{sum(chunks):,} tokens in {len(chunks)} chunk{'' if len(chunks) == 1 else 's'}"
    assert told["Output"] == f"{states[-1][1].num_output_tokens} tokens"
    assert told["Preempted"].startswith(f"{preempted.count(name)}×, ")
    ttft_ms = 1000 * (first.started_s + first.duration_s - states[0][1].arrival_time_s)
    shown_ms = float(told["TTFT"].split()[0].replace(",", "")) * (1000 if told["TTFT"].endswith(" s") else 1)
    assert shown_ms == pytest.approx(ttft_ms, rel=0.05)


def test_tooltip_says_what_lies_under_the_pointer(shown: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown
    step, name = preemptions(records)[0]
    x, place = show_row(page, name, step)
    page.locator(CANVAS).hover(position={"x": x + 3, "y": middle_of_row(place)})
    expect(page.locator("#wb-timeline .wb-tip h4")).to_have_text(f"{name} preempted")
    expect(part(page, "tipRows")).to_contain_text(f"{step:,}")
    record = next(r for r in records if r.step_id == step)
    page.locator(CANVAS).hover(position={"x": x + 3, "y": 40})
    expect(part(page, "tipRows")).to_contain_text(f"{record.num_scheduled_tokens} of 64")


# ------------------------------------------------------------------------------ reading the history


def test_hidden_timeline_asks_for_nothing_and_catches_up_when_shown(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    service.engine.add(40, 400)
    service.step()
    page = open_page().page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "history/steps" in request.url else None)
    open_timeline(page, serve(build_timeline_app(service)).url)
    wait_for_history(page, 0)
    page.get_by_role("tab", name="Other").click()
    expect(page.get_by_text("Nothing that is drawn from the history.")).to_be_visible()
    before = len(asked)
    for _ in range(3):
        service.step()
        page.wait_for_function("step => wb.store.live.stepId === step", arg=service.engine.step_id)
    assert len(asked) == before
    page.get_by_role("tab", name="Timeline").click()
    wait_for_history(page, 3)
    assert "after=0&" in asked[-1]


def test_steps_of_another_engine_replace_those_of_the_last(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    service.engine.add(40, 400)
    for _ in range(30):
        service.step()
    page = open_page().page
    open_timeline(page, serve(build_timeline_app(service)).url)
    wait_for_history(page, 29)
    service.load(64)
    service.engine.add(20, 400)
    service.step()
    wait_for_history(page, 0)
    assert read(page, "[v.history.numSteps, v.rows.map(r => r.prefillTokens), v.axis.from]") == [1, [20], 0]


def test_history_that_cannot_be_read_is_said_and_asked_for_again(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    service.engine.add(40, 400)
    service.step()
    watched = open_page()
    page = watched.page
    answers = [b"WBHS\x09\x00" + bytes(26), b"nonsense"]
    page.route("**/history/steps*", lambda route: route.fulfill(body=answers.pop()) if answers else route.continue_())
    open_timeline(page, serve(build_timeline_app(service)).url)
    expect(part(page, "lost")).to_contain_text("not a chunk of the history")
    expect(part(page, "lost")).to_contain_text("history format 9")
    wait_for_history(page, 0)
    expect(part(page, "lost")).to_be_hidden()


def test_empty_timeline_says_how_to_fill_it(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    open_timeline(page, serve(build_timeline_app(FakeService())).url)
    expect(part(page, "empty")).to_have_text("No steps yet. Send a message or add 8 background requests.")
    expect(part(page, "timeline")).to_be_hidden()


# ------------------------------------------------------------------------------ many steps

SYNTHETIC = """([steps, requests]) => {
  const names = JSON.stringify({ requests: Array.from({ length: requests }, (_, i) =>
    [i + 1, `r${i}`, i, `r${i}`, 0, i]) });
  const text = new TextEncoder().encode(names);
  const entries = steps * requests, at = 32 + 48 * steps;
  const buffer = new ArrayBuffer(at + 12 * entries + text.length), view = new DataView(buffer);
  new Uint8Array(buffer).set(new TextEncoder().encode("WBHS"));
  view.setUint16(4, 1, true);
  view.setUint32(8, wb.store.known.instance, true);
  view.setUint32(12, wb.store.known.epoch, true);
  [steps, entries, text.length].forEach((n, i) => view.setUint32(20 + 4 * i, n, true));
  for (let s = 0; s < steps; s++) {
    const o = 32 + 48 * s;
    view.setUint32(o, s, true); view.setFloat32(o + 4, 20, true); view.setFloat64(o + 8, s * 0.021, true);
    const tokens = (s * 37) % 256;
    [tokens, tokens >> 1, tokens - (tokens >> 1), 256].forEach((n, i) => view.setUint32(o + 16 + 4 * i, n, true));
    view.setUint32(o + 36, (s * 13) % 64, true);
    view.setUint32(o + 44, s * requests, true);
    for (let r = 0; r < requests; r++) {
      const e = at + 12 * (s * requests + r), phase = (s + r * 17) % 97;
      view.setUint32(e, r + 1, true); view.setUint32(e + 4, phase < 90 ? 1 : 0, true);
      view.setUint8(e + 8, phase < 6 ? 1 : phase < 90 ? 2 : 3); view.setUint8(e + 9, phase === 90 ? 8 : 0);
    }
  }
  new Uint8Array(buffer).set(text, at + 12 * entries);
  const v = VIEW;
  v.reader.want = () => {};
  v.desk.want = () => null;
  v.history.forget(wb.store.known.instance, wb.store.known.epoch);
  v.history.take(buffer);
  v.axis.reset();
  v.update();
  v.axis.showAll();
  v.update();
}""".replace("VIEW", VIEW)


BARS = "(() => { const a = []; wb.timelineTracks.eachBar(v.axis, (...bar) => a.push(bar)); return a; })()"


def test_steps_narrower_than_three_pixels_are_merged_by_their_maximum(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    open_timeline(page, serve(build_timeline_app(FakeService(num_blocks=64))).url)
    page.evaluate(SYNTHETIC, [10_000, 64])
    bars = read(page, BARS)
    width = read(page, "v.axis.width")
    assert len(bars) <= width / 3 + 2
    assert min(bar[1] for bar in bars[1:-1]) >= 2.5
    assert [bar[3] for bar in bars] == [0, *(bar[4] + 1 for bar in bars[:-1])], "every step is in one bar"
    assert bars[-1][4] == 9_999
    for _, _, most, first, last in bars:
        assert most * 37 % 256 == max(step * 37 % 256 for step in range(first, last + 1))
    for a, b in pairwise(bars):
        assert a[0] + a[1] == pytest.approx(b[0])
    read(page, "(v.axis.show(500, 600), v.update())")
    wide = read(page, BARS)
    assert [bar[3:] for bar in wide] == [[step, step] for step in range(500, 600)]


def test_steps_that_the_server_let_go_are_forgotten(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    open_timeline(page, serve(build_timeline_app(FakeService(num_blocks=64))).url)
    page.evaluate(SYNTHETIC, [5000, 8])
    before = read(page, "[v.history.at('scheduled', 4000), v.history.entryOf(4000, 3), v.history.startOf(4000)]")
    read(page, "(v.history.forgetBefore(3000), v.update())")
    assert read(page, "[v.history.first, v.history.base, v.history.numSteps, v.history.last]") == [
        3000,
        3000,
        2000,
        4999,
    ]
    after = read(page, "[v.history.at('scheduled', 4000), v.history.entryOf(4000, 3), v.history.startOf(4000)]")
    assert after == before
    assert read(page, "v.axis.from") >= 3000


# ------------------------------------------------------------------------------ everybody can use it


def test_keyboard_alone_reaches_steps_and_requests(shown: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown
    last = records[-1].step_id
    page.locator(CANVAS).focus()
    for key, cursor in ((",", last - 1), (",", last - 2), (".", last - 1)):
        page.keyboard.press(key)
        page.wait_for_function("step => wb.store.past && wb.store.past.stepId === step", arg=cursor)
    names = read(page, "v.rows.map(r => r.id)")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(part(page, "lifeName")).to_have_text(names[-2])
    span = read(page, "v.axis.span")
    page.keyboard.press("+")
    assert read(page, "v.axis.span") == pytest.approx(span / 1.5)
    page.keyboard.press("Escape")
    expect(part(page, "lifeNone")).to_be_visible()
    page.keyboard.press("Space")
    page.wait_for_function("wb.store.cursor === null")
    part(page, "find").focus()
    page.keyboard.type("f ,.")
    assert page.evaluate("wb.store.cursor") is None, "keys belong to a text field that has the focus"


def test_summary_for_screen_readers_names_steps_requests_and_preemptions(shown: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown
    canvas = part(page, "timeline")
    expect(canvas).to_have_attribute("role", "img")
    expect(canvas).to_have_attribute("tabindex", "0")
    read(page, "(v.axis.showAll(), v.redraw())")
    page.wait_for_function(
        f"""() => {{ const v = {VIEW}; v.announcedAt = -9999; v.update();
        const label = document.querySelector('{CANVAS}').ariaLabel;
        return label.includes('Steps {records[0].step_id} to {records[-1].step_id} '); }}"""
    )
    label = canvas.get_attribute("aria-label") or ""
    assert f"24 requests shown, {len(preemptions(records))} preemptions." in label
    assert f"{records[-1].num_running} running, {records[-1].num_waiting} waiting." in label


@pytest.mark.parametrize("width", [1440, 1280, 390])
def test_timeline_fits_its_width_and_shows_its_rows(run: Any, serve: Serve, open_page: OpenPage, width: int) -> None:
    service, records = run
    page = open_page(width=width).page
    open_timeline(page, serve(build_timeline_app(service)).url)
    wait_for_history(page, records[-1].step_id)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    layout = read(page, "v.layout")
    assert layout["numRows"] >= 8
    assert layout["rowHeight"] == (18 if width == 390 else 20)
    box = page.locator(CANVAS).bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= width


def test_colours_follow_the_theme_at_once(shown: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown
    busy = next(r.step_id for r in records if r.num_prefill_tokens > 40)
    x = read(page, f"(v.axis.show({busy} - 10, {busy} + 10), v.update(), v.axis.x({busy}))")
    assert pixel(page, x + 3, 55) == PREFILL
    page.evaluate("document.body.classList.remove('dark')")
    page.wait_for_function("wb.palette.colors().theme === 'light'")
    read(page, "0")
    assert pixel(page, x + 3, 55) == (31, 111, 191)
