"""The page's connection to the engine: hidden tabs, lost and replaced servers, refused and silent sockets."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
from playwright.sync_api import Page, expect

from tests.browser.map_page import (
    NO_SOCKET,
    WAYS,
    OpenPage,
    Serve,
    build_map_app,
    check_pixels,
    open_map,
    run_simulated,
    shown_states,
    submit_random,
    wait_for_step,
)
from tests.server.fake_service import FakeService
from tests.server.live_client import states_in
from workbench.engine.messages import ServiceState
from workbench.engine.service import EngineService
from workbench.sampling_params import SamplingParams


def test_hidden_tab_closes_its_socket_and_resyncs_on_return(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64, seed=6)
    page = open_page().page
    closed: list[str] = []
    page.on("websocket", lambda socket: socket.on("close", lambda _: closed.append(socket.url)))
    open_map(page, serve(build_map_app(service)).url)
    run_simulated(service, 20)
    wait_for_step(page, 19)
    set_hidden(page, True)
    page.wait_for_function("wb.feed.state === 'idle' && wb.feed.socket === null")
    run_simulated(service, 50)
    assert page.evaluate("wb.store.live.stepId") == 19
    set_hidden(page, False)
    wait_for_step(page, 69)
    assert len([url for url in closed if "/live" in url]) == 1
    assert shown_states(page) == states_in(service.pool_snapshot())
    check_pixels(page, service.pool_snapshot())


def test_hidden_tab_stops_polling_and_resyncs_on_return(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64, seed=6)
    page = open_page(init_script=NO_SOCKET).page
    open_map(page, serve(build_map_app(service)).url)
    run_simulated(service, 20)
    wait_for_step(page, 19)
    set_hidden(page, True)
    page.wait_for_function("wb.feed.state === 'idle' && wb.feed.timer === null")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    run_simulated(service, 50)
    page.wait_for_timeout(1500)
    # One question for the history may have been due when the tab was hidden.
    assert [url for url in asked if "/history/" not in url] == []
    assert page.evaluate("wb.store.live.stepId") == 19
    set_hidden(page, False)
    wait_for_step(page, 69)
    assert shown_states(page) == states_in(service.pool_snapshot())
    check_pixels(page, service.pool_snapshot())


def set_hidden(page: Page, is_hidden: bool) -> None:
    page.evaluate(
        """hidden => { Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
        document.dispatchEvent(new Event('visibilitychange')); }""",
        is_hidden,
    )


@WAYS
def test_server_restart_leaves_no_stale_cell(serve: Serve, open_page: OpenPage, init_script: str | None) -> None:
    first, second = FakeService(num_blocks=64, seed=1), FakeService(num_blocks=48, seed=2)
    watched = open_page(init_script=init_script)
    watched.expects_a_lost_server = True
    page = watched.page
    server = serve(build_map_app(first))
    open_map(page, server.url)
    run_simulated(first, 60)
    wait_for_step(page, 59)
    run_simulated(second, 20)
    server.stop()
    expect(page.locator("#wb-header [data-part=feed]")).to_contain_text("stale")
    expect(
        page.locator("#wb-block-map > * > .wb-stale, #wb-block-map .wb-stale, #wb-block-map.wb-stale").first
    ).to_be_attached()
    serve(build_map_app(second), port=server.port)
    wait_for_step(page, 19)
    expect(page.locator("#wb-header [data-part=feed]")).to_have_text("live")
    assert shown_states(page) == states_in(second.pool_snapshot())
    check_pixels(page, second.pool_snapshot())


def test_engine_reload_leaves_no_stale_cell(service: EngineService, serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    submit_random(service, random.Random(1), 6)
    page.wait_for_function("[...wb.store.live.status].filter(s => s === 2).length > 5")
    service.reload(replace(service.config, num_blocks=50, block_size=32), drain_s=0)
    page.wait_for_function("wb.store.live.numBlocks === 50 && wb.store.live.blockSize === 32")
    assert shown_states(page) == states_in(service.pool_snapshot()) == [(0, 0, 0, (), -1)] * 50
    service.submit([5] * 40, SamplingParams(max_tokens=5, ignore_eos=True), lambda event: None)
    page.wait_for_function("wb.store.live.stepId >= 5")
    page.wait_for_function("[...wb.store.live.status].every(s => s !== 2)")


def test_aborted_request_frees_its_cells(service: EngineService, serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    name = service.submit([9] * 100, SamplingParams(max_tokens=400, ignore_eos=True), lambda event: None)
    page.wait_for_function("[...wb.store.live.status].filter(s => s === 2).length > 6")
    service.abort(name)
    page.wait_for_function("[...wb.store.live.status].every(s => s !== 2) && wb.store.live.requests.size === 0")
    expect(page.locator("#wb-block-map [data-part=empty]")).to_have_text(
        "No requests now. Hatched blocks keep what earlier ones computed, for whoever begins alike."
    )


def test_socket_that_never_opens_falls_back_to_polling(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64, seed=8)
    watched = open_page()
    watched.expects_a_lost_server = True
    page = watched.page
    page.route_web_socket("**/live**", lambda socket: socket.close())
    open_map(page, serve(build_map_app(service)).url)
    run_simulated(service, 30)
    wait_for_step(page, 29)
    assert page.evaluate("wb.feed.transport") == "polling"
    assert shown_states(page) == states_in(service.pool_snapshot())


def test_socket_that_opens_but_stays_silent_falls_back_to_polling(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64, seed=8)
    page = open_page().page
    page.route_web_socket("**/live**", lambda socket: None)
    page.clock.install()
    page.goto(f"{serve(build_map_app(service)).url}/?__theme=dark")
    page.wait_for_function("window.wb && wb.feed.socket !== null")
    for _ in range(40):
        page.clock.run_for(500)
    page.wait_for_function("wb.feed.transport === 'polling' && wb.store.live.numBlocks === 64")


def test_page_holds_one_socket_for_all_views(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    open_map(page, serve(build_map_app(FakeService())).url)
    page.get_by_role("tab", name="Chat").click()
    page.locator("#wb-compact-map canvas").wait_for()
    assert len([url for url in sockets if "/live" in url]) == 1


def test_header_shows_load_progress_then_the_model(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService()
    ready = service.status
    service.status = msgspec.structs.replace(
        ready,
        state=ServiceState.LOADING,
        phase="weights",
        done_bytes=61_000_000,
        total_bytes=97_000_000,
        num_blocks=0,
        epoch=0,
    )
    page = open_page().page
    page.goto(serve(build_map_app(service)).url)
    header = page.locator("#wb-header")
    expect(header).to_contain_text("Loading the model: weights 61 / 97 MB")
    service.status = msgspec.structs.replace(ready, notices=("The compiled CPU kernels are not active",))
    expect(header.locator("[data-part=progress]")).to_be_hidden()
    expect(header).to_contain_text("simulated")
    expect(header).to_contain_text("The compiled CPU kernels are not active")


def test_decoder_in_the_page_refuses_what_is_not_a_frame(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    open_map(page, serve(build_map_app(FakeService())).url)
    refused = page.evaluate(
        """async () => {
          const good = await (await fetch('live/frame')).arrayBuffer();
          const change = (offset, value) => { const b = good.slice(0); new Uint8Array(b)[offset] = value; return b; };
          const cases = { empty: new ArrayBuffer(0), short: good.slice(0, 43), magic: change(0, 88),
            format: change(4, 1), kind: change(6, 7), cut: good.slice(0, good.byteLength - 1), good };
          return Object.entries(cases).map(([name, bytes]) => {
            try { wb.decodeFrame(bytes); return `${name}: accepted`; }
            catch (e) { return `${name}: ${e instanceof wb.FrameError ? 'refused' : e}`; }
          });
        }"""
    )
    assert refused == [
        "empty: refused",
        "short: refused",
        "magic: refused",
        "format: refused",
        "kind: refused",
        "cut: refused",
        "good: accepted",
    ]
