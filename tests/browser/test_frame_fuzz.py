"""Broken frames in a real browser: the page refuses them or shows them, but never throws, hangs or stays broken."""

from __future__ import annotations

import base64

import pytest
from playwright.sync_api import Page, WebSocketRoute

from tests.browser.map_page import (
    WAYS,
    OpenPage,
    Serve,
    build_map_app,
    check_pixels,
    next_frame,
    open_map,
    run_simulated,
    shown_states,
    wait_for_step,
)
from tests.server.fake_service import FakeService
from tests.server.live_client import states_in
from workbench.server.feed import LiveFeed
from workbench.telemetry.frames import KIND_DELTA, KIND_FULL
from workbench.ui import explain

MUTATIONS_EACH = 2000

FUZZ = """async ([frames, seed, rounds]) => {
  let state = seed;
  const random = (n) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
  const pick = (list) => list[random(list.length)];
  const HEADER = 44, EDGES = [0, 1, 2, 0x7f, 0xff, 0x7fffffff, 0x80000000, 0xffffffff];
  const ODD = [null, true, -1, 0, 1.5, 2 ** 31, 1e308, "", "x", [], {}, [[]], [null], [-1, 2], { a: 1 }];

  const flip = (bytes) => {
    for (let n = 1 + random(8); n; n--) bytes[random(bytes.length)] = random(256);
    return bytes;
  };
  const cut = (bytes) => bytes.slice(0, random(bytes.length));
  const grow = (bytes) => { const b = new Uint8Array(bytes.length + 1 + random(64)); b.set(bytes); return b; };
  const header = (bytes) => {
    new DataView(bytes.buffer).setUint32(4 * random(11), pick(EDGES), true);
    return bytes;
  };
  const record = (bytes) => {
    const end = bytes.length - new DataView(bytes.buffer).getUint32(40, true);
    if (end > HEADER + 4) new DataView(bytes.buffer).setUint32(HEADER + random(end - HEADER - 4), pick(EDGES), true);
    return bytes;
  };
  /** The JSON part with one value somewhere in it replaced or left out; the lengths stay right. */
  const structure = (bytes) => {
    const view = new DataView(bytes.buffer), at = bytes.length - view.getUint32(40, true);
    const root = { body: JSON.parse(new TextDecoder().decode(bytes.slice(at))) };
    let parent = root, key = "body";
    while (parent[key] && typeof parent[key] === "object" && Object.keys(parent[key]).length && random(6)) {
      parent = parent[key];
      key = pick(Object.keys(parent));
    }
    if (random(4)) parent[key] = pick(ODD);
    else if (Array.isArray(parent)) parent.splice(Number(key), 1);
    else delete parent[key];
    const text = new TextEncoder().encode(JSON.stringify(root.body) ?? "");
    const whole = new Uint8Array(at + text.length);
    whole.set(bytes.subarray(0, at));
    whole.set(text, at);
    new DataView(whole.buffer).setUint32(40, text.length, true);
    return whole;
  };

  const told = { refused: 0, applied: 0, mismatched: 0, thrown: [] };
  const drawn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  for (const mutate of [flip, cut, grow, header, record, structure]) {
    for (let round = 0; round < rounds; round++) {
      const bytes = mutate(Uint8Array.from(atob(pick(frames)), (c) => c.charCodeAt(0)));
      try {
        const frame = wb.decodeFrame(bytes.buffer);
        wb.store.known = { instance: frame.instance, epoch: frame.epoch, version: frame.baseVersion };
        if (wb.store.apply(frame)) told.applied++; else told.mismatched++;
        if (told.applied % 40 === 0) await drawn();
      } catch (error) {
        if (error instanceof wb.FrameError) told.refused++;
        else told.thrown.push(`${mutate.name}: ${error && error.stack}`);
      }
    }
    await drawn();
  }
  wb.store.known = { instance: 0, epoch: 0, version: 0 };
  wb.feed.restart();
  return told;
}"""


def example_frames() -> list[str]:
    """Full frames and deltas with shared, cached and moved blocks and with requests that wait, in base 64."""
    service = FakeService(num_blocks=40, seed=11, num_swap_blocks=8)
    feed = LiveFeed(service, explain)
    frames: list[bytes] = []
    for _ in range(12):
        run_simulated(service, 15)
        base = feed.state.version
        feed.drain()
        frames += [feed.frame(0), feed.frame(base)]
    assert {data[6] for data in frames} == {KIND_FULL, KIND_DELTA}
    return [base64.b64encode(data).decode() for data in frames]


@pytest.mark.parametrize("seed", [1, 2])
def test_thousands_of_broken_frames_neither_throw_nor_stay(serve: Serve, open_page: OpenPage, seed: int) -> None:
    """Those that are whole enough are even drawn; the next live frame sets everything right."""
    service = FakeService(num_blocks=40, seed=3)
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    run_simulated(service, 20)
    wait_for_step(page, 19)
    told = page.evaluate(FUZZ, [example_frames(), seed, MUTATIONS_EACH])
    assert told["thrown"] == []
    assert told["refused"] > 3 * MUTATIONS_EACH
    assert told["applied"] > 100
    run_simulated(service, 5)
    page.wait_for_function("wb.feed.state === 'live' && wb.store.live.stepId === 24 && wb.store.live.numBlocks === 40")
    next_frame(page)
    assert shown_states(page) == states_in(service.pool_snapshot())
    check_pixels(page, service.pool_snapshot())


@WAYS
def test_feed_that_sends_rubbish_is_asked_less_and_less_often(
    serve: Serve, open_page: OpenPage, init_script: str | None
) -> None:
    """The picture turns stale and stays; the page asks on, at growing distances, and recovers."""
    service = FakeService(num_blocks=40, seed=3)
    watched = open_page(init_script=init_script)
    watched.expects_a_lost_server = True
    page = watched.page
    asked: list[str] = []

    def note(url: str) -> None:
        if "/live" in url:
            asked.append(url)

    page.on("request", lambda request: note(request.url))
    page.on("websocket", lambda socket: note(socket.url))
    open_map(page, serve(build_map_app(service)).url)
    run_simulated(service, 20)
    wait_for_step(page, 19)
    before = shown_states(page)
    start_rubbish(page)
    page.evaluate("wb.feed.restart()")
    page.wait_for_function("wb.feed.failures >= 3")
    page.wait_for_function("wb.feed.isStale()")
    assert page.evaluate("String(wb.feed.error)") == "Error: 7 bytes are shorter than a header"
    assert shown_states(page) == before
    number = len(asked)
    page.wait_for_function("failures => wb.feed.failures >= failures", arg=page.evaluate("wb.feed.failures") + 2)
    assert len(asked) - number <= 4
    page.unroute("**/live/frame**")
    run_simulated(service, 5)
    wait_for_step(page, 24)
    page.wait_for_function("!wb.feed.isStale() && wb.feed.failures === 0")
    assert shown_states(page) == states_in(service.pool_snapshot())


def start_rubbish(page: Page) -> None:
    """From now on sockets close after seven bytes, and polls answer them."""

    def refuse(socket: WebSocketRoute) -> None:
        socket.send(b"rubbish")

    page.route_web_socket("**/live**", refuse)
    page.route("**/live/frame**", lambda route: route.fulfill(body=b"rubbish"))
