"""The timeline in a real browser shows what the records say, to everybody.

What is expected comes from the engine's own records, never from the history that the page read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.map_page import OpenPage, Serve
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
    recorded_run,
    show_row,
    wait_for_history,
)
from workbench.telemetry.records import Decision, RequestState, RequestStatus, StepRecord

pytestmark = pytest.mark.browser
expect.set_options(timeout=DEADLINE_MS)

PREFILL, DECODE, PREEMPTED = (79, 157, 232), (154, 167, 181), (255, 111, 174)
"""Of the dark palette, as NOTES.md gives it."""
WAITED, COMPUTED, DECODED, HELD, HELD_SWAPPED = range(5)


def kind_of(state: RequestState) -> int:
    if state.status is RequestStatus.SWAPPED:
        return HELD_SWAPPED
    if state.status is RequestStatus.PREEMPTED:
        return HELD
    if not state.num_scheduled_tokens:
        return WAITED
    return COMPUTED if state.is_prefill else DECODED


def test_tracks_hold_the_figures_of_the_records(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown_run
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


def test_rows_hold_what_each_request_did_in_each_step(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown_run
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


def test_pixels_of_rows_and_tracks_show_the_records(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown_run
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


def test_preemption_has_a_notch_and_an_arrow_at_its_resumption(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown_run
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


def test_keyboard_alone_reaches_steps_and_requests(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown_run
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


def test_summary_for_screen_readers_names_steps_requests_and_preemptions(
    shown_run: tuple[Page, list[StepRecord]],
) -> None:
    page, records = shown_run
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
def test_timeline_fits_its_width_and_shows_its_rows(
    timeline_run: Any, serve: Serve, open_page: OpenPage, width: int
) -> None:
    service, records = timeline_run
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


def test_colours_follow_the_theme_at_once(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown_run
    busy = next(r.step_id for r in records if r.num_prefill_tokens > 40)
    x = read(page, f"(v.axis.show({busy} - 10, {busy} + 10), v.update(), v.axis.x({busy}))")
    assert pixel(page, x + 3, 55) == PREFILL
    page.evaluate("document.body.classList.remove('dark')")
    page.wait_for_function("wb.palette.colors().theme === 'light'")
    read(page, "0")
    assert pixel(page, x + 3, 55) == (31, 111, 191)


def test_keys_stay_in_a_row_with_other_controls_on_a_narrow_page(
    timeline_run: Any, serve: Serve, open_page: OpenPage
) -> None:
    page = open_page(width=390).page
    open_timeline(page, serve(build_timeline_app(timeline_run[0])).url)
    keys, zoom = page.get_by_label("Keys of the timeline"), page.locator("#wb-timeline [data-part=zoomIn]")
    expect(zoom).to_be_visible()
    middles = [box["y"] + box["height"] / 2 for box in (keys.bounding_box(), zoom.bounding_box()) if box]
    assert len(middles) == 2
    assert abs(middles[0] - middles[1]) < 4
    keys.click()
    words = page.locator("#wb-timeline .wb-keys p").bounding_box()
    assert words is not None
    assert words["x"] >= 0
    assert words["x"] + words["width"] <= 390
