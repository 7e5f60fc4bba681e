"""A saved run, served again without its engine, looks as the engine did at the same steps."""

from __future__ import annotations

import json
import random
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.map_page import (
    MAP,
    OpenPage,
    Serve,
    build_map_app,
    next_frame,
    open_map,
    run_steps,
    shown_states,
    submit_random,
    wait_for_step,
)
from tests.browser.running_server import DEADLINE_MS
from tests.server.live_client import states_in
from workbench.engine.service import EngineService
from workbench.server.replay import open_replay
from workbench.ui import explain

expect.set_options(timeout=DEADLINE_MS)

LOOK = f"""() => {{
  const text = name => document.querySelector(`#wb-block-map [data-part=${{name}}]`).innerText;
  return {{
    map: document.querySelector('{MAP}').toDataURL(),
    totals: document.querySelector('#wb-block-map .wb-totals').innerText,
    chips: text('chips'), queue: text('queueRows'), waste: text('wasteNote'),
    moved: ['movedCopy', 'movedOut', 'movedIn'].map(text),
  }};
}}"""
"""The map's pixels, and the words around it."""


def look_of(page: Page) -> dict[str, Any]:
    next_frame(page)
    look: dict[str, Any] = page.evaluate(LOOK)
    return look


def test_replay_shows_the_pixels_that_live_showed_at_the_same_steps(
    service: EngineService, serve: Serve, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page().page
    url = serve(build_map_app(service)).url
    open_map(page, url)
    service.pause()
    rng = random.Random(5)
    live, states = {}, {}
    for _ in range(7):
        submit_random(service, rng, 6)
        run_steps(service, 23)
        snapshot = service.pool_snapshot()
        wait_for_step(page, snapshot.step_id)
        live[snapshot.step_id], states[snapshot.step_id] = look_of(page), states_in(snapshot)
    assert len({look["map"] for look in live.values()}) == 7
    assert any(look["queue"] for look in live.values()), "somebody had to wait"

    saved = tmp_path / "run.jsonl.gz"
    with urllib.request.urlopen(f"{url}/history/save") as answer:
        saved.write_bytes(answer.read())
    replay = open_replay(saved)
    replayed = open_page().page
    open_map(replayed, serve(build_map_app(replay, feed=replay.feed(explain))).url)
    expect(replayed.locator("#wb-header [data-part=notices]")).to_contain_text("Replay of run.jsonl.gz")
    for step_id in sorted(live, key=lambda step: (step * 7919) % 101):
        for shown in (page, replayed):
            shown.evaluate("step => wb.store.seek(step)", step_id)
            shown.wait_for_function("step => wb.store.view().stepId === step", arg=step_id)
            assert look_of(shown) == live[step_id], step_id
            assert shown_states(shown) == states[step_id]


def test_bar_saves_the_run_and_its_trace(
    service: EngineService, serve: Serve, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    service.pause()
    submit_random(service, random.Random(1), 3)
    run_steps(service, 12)
    last = service.pool_snapshot().step_id
    wait_for_step(page, last)
    saved = {}
    for name in ("Save the recorded run", "Save the run as a trace"):
        with page.expect_download() as download:
            page.get_by_role("link", name=name).click()
        saved[name] = tmp_path / download.value.suggested_filename
        download.value.save_as(saved[name])
    run, trace = saved.values()
    assert (run.name.split("-")[:2], run.suffix) == (["workbench", "run"], ".gz")
    assert open_replay(run).recorder.since(-1)[-1].step_id == last
    assert {event["ph"] for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]} >= {"X", "C", "M"}
