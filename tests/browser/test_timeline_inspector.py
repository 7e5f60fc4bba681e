"""The timeline's filters, its step inspector, its request panel and its tooltip in a real browser.

What is expected comes from the engine's own records, never from the history that the page read.
"""

from __future__ import annotations

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
    preemptions,
    read,
    show_row,
    wait_for_history,
)
from tests.server.fake_service import FakeService
from workbench.telemetry.records import Decision, StepRecord
from workbench.ui.explain import explain

pytestmark = pytest.mark.browser
expect.set_options(timeout=DEADLINE_MS)


def test_filters_keep_the_rows_that_they_name(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown_run
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


def test_inspector_tells_the_decisions_of_the_record(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown_run
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


def test_request_panel_counts_what_the_records_tell(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown_run
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


def test_tooltip_says_what_lies_under_the_pointer(shown_run: tuple[Page, list[StepRecord]]) -> None:
    page, records = shown_run
    step, name = preemptions(records)[0]
    x, place = show_row(page, name, step)
    page.locator(CANVAS).hover(position={"x": x + 3, "y": middle_of_row(place)})
    expect(page.locator("#wb-timeline .wb-tip h4")).to_have_text(f"{name} preempted")
    expect(part(page, "tipRows")).to_contain_text(f"{step:,}")
    record = next(r for r in records if r.step_id == step)
    page.locator(CANVAS).hover(position={"x": x + 3, "y": 40})
    expect(part(page, "tipRows")).to_contain_text(f"{record.num_scheduled_tokens} of 64")
