"""How the timeline in a real browser reads the history: when, from which engine, and how many steps of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from playwright.sync_api import expect

from tests.browser.map_page import OpenPage, Serve
from tests.browser.running_server import DEADLINE_MS
from tests.browser.timeline_page import (
    VIEW,
    build_timeline_app,
    open_timeline,
    part,
    read,
    wait_for_history,
)
from tests.server.fake_service import FakeService

pytestmark = pytest.mark.browser
expect.set_options(timeout=DEADLINE_MS)


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


def test_hidden_timeline_falls_behind_by_little(serve: Serve, open_page: OpenPage) -> None:
    """What was not read is lost with the server."""
    service = FakeService(num_blocks=64)
    service.engine.add(40, 400)
    service.step()
    watched = open_page()
    watched.expects_a_lost_server = True
    page = watched.page
    server = serve(build_timeline_app(service))
    open_timeline(page, server.url)
    wait_for_history(page, 0)
    page.get_by_role("tab", name="Other").click()
    for _ in range(100):
        service.step()
    page.wait_for_function("() => wb.store.live.stepId === 100")
    page.evaluate("() => { wb.recorded.reader.askedAt = -1e6; }")  # as if it were long ago
    service.step()
    page.wait_for_function("() => wb.recorded.history.last >= 100")
    last = page.evaluate("() => wb.recorded.history.last")
    for _ in range(40):
        service.step()
    page.wait_for_function("() => wb.store.live.stepId === 141")
    server.stop()
    page.get_by_role("tab", name="Blocks").click()
    page.wait_for_function("() => document.querySelector('#wb-block-map [data-part=scrubber]').width > 0")
    known = page.evaluate(
        """step => { const track = document.querySelector('#wb-block-map [data-part=scrubber]');
          const g = track.getContext('2d'), xOf = (step) => Math.round(step / 141 * track.width);
          return [step - 10, step + 10].map((each) => g.getImageData(xOf(each), 6, 1, 1).data[3]); }""",
        last,
    )
    assert known == [255, 0], "an unknown step is not drawn as an empty pool"


def test_steps_of_another_engine_replace_those_of_the_last(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    service.engine.add(40, 400)
    for _ in range(30):
        service.step()
    watched = open_page()
    watched.expects_a_lost_server = True  # a step of the last engine may be asked for just when it is gone
    page = watched.page
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


BARS = "wb.timelineTracks.barsOf(v.axis).map((bar) => [bar.x, bar.width, bar.step, bar.first, bar.last])"


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
