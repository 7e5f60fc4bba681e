"""The map in a real browser shows what the engine's own pool holds, over both transports."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import RunningServer, WatchedPage
from tests.browser.map_page import (
    LAYOUT,
    MAP,
    bottom_pixel,
    build_map_app,
    check_pixels,
    next_frame,
    open_map,
    shown_states,
    wait_for_step,
)
from tests.models.tiny_gguf import write_tiny_gguf
from tests.server.fake_service import FakeService
from tests.server.live_client import states_in
from workbench.config import EngineConfig
from workbench.engine.messages import ServiceState
from workbench.engine.service import EngineService
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import BlockStatus, StepRecord

NO_SOCKET = "delete window.WebSocket;"
WAYS = pytest.mark.parametrize("init_script", [None, NO_SOCKET], ids=["websocket", "polling"])

OpenPage = Callable[..., WatchedPage]
Serve = Callable[..., RunningServer]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path, num_layers=1, hidden_size=32, intermediate_size=32, num_heads=1, num_kv_heads=1)
    return path


@pytest.fixture
def service(tiny_model: Path) -> Iterator[EngineService]:
    """A real engine on a tiny random model; 80 blocks, so that a dozen requests fight for them."""
    config = EngineConfig(
        model=str(tiny_model), num_blocks=80, max_num_batched_tokens=64, max_num_seqs=16, check_integrity=True
    )
    engine = EngineService(config)
    engine.start()
    engine.wait_ready(60)
    yield engine
    engine.shutdown()


def submit_random(service: EngineService, rng: random.Random, num_requests: int) -> list[str]:
    def params() -> SamplingParams:
        return SamplingParams(
            max_tokens=rng.randint(20, 200), ignore_eos=True, temperature=1.0, seed=rng.randint(0, 99)
        )

    prompts = [[rng.randint(3, 258) for _ in range(rng.randint(1, 150))] for _ in range(num_requests)]
    return [service.submit(prompt, params(), lambda event: None) for prompt in prompts]


def run_steps(service: EngineService, num_steps: int) -> None:
    """Let the held engine go on for at least so many steps, and hold it again."""
    reached = threading.Event()
    seen: list[StepRecord] = []

    def count(record: StepRecord) -> None:
        seen.append(record)
        if len(seen) >= num_steps:
            reached.set()

    unsubscribe = service.subscribe(count)
    service.resume()
    assert reached.wait(60)
    service.pause()
    unsubscribe()


def run_simulated(service: FakeService, num_steps: int) -> None:
    for _ in range(num_steps):
        if service.engine.random.random() < 0.3:
            service.engine.add_random()
        service.step()


# ------------------------------------------------------------------------------ equality


@WAYS
def test_map_pixels_equal_the_engines_pool_after_hundreds_of_steps(
    service: EngineService, serve: Serve, open_page: OpenPage, init_script: str | None
) -> None:
    page = open_page(init_script=init_script).page
    open_map(page, serve(build_map_app(service)).url)
    service.pause()
    rng = random.Random(7)
    kinds: dict[str, int] = {}
    num_preemptions = 0
    for _ in range(5):
        names = submit_random(service, rng, 8)
        service.abort(rng.choice(names))
        run_steps(service, 50)
        snapshot = service.pool_snapshot()
        wait_for_step(page, snapshot.step_id)
        assert shown_states(page) == states_in(snapshot)
        for kind, count in check_pixels(page, snapshot).items():
            kinds[kind] = kinds.get(kind, 0) + count
        num_preemptions += page.evaluate("[...wb.store.live.requests.values()].reduce((n, r) => n + r.preemptions, 0)")
    assert page.evaluate("wb.feed.transport") == ("websocket" if init_script is None else "polling")
    assert snapshot.step_id >= 250
    assert min(kinds["free"], kinds["active"], kinds["partly"]) > 0
    assert num_preemptions > 0


@WAYS
def test_map_pixels_show_shared_and_cached_blocks_and_owners_beyond_twelve(
    serve: Serve, open_page: OpenPage, init_script: str | None
) -> None:
    service = FakeService(num_blocks=192, seed=11)
    page = open_page(init_script=init_script).page
    open_map(page, serve(build_map_app(service)).url)
    kinds: dict[str, int] = {}
    for _ in range(8):
        run_simulated(service, 40)
        snapshot = service.pool_snapshot()
        wait_for_step(page, snapshot.step_id)
        assert shown_states(page) == states_in(snapshot)
        for kind, count in check_pixels(page, snapshot).items():
            kinds[kind] = kinds.get(kind, 0) + count
    assert min(kinds.values()) > 0, kinds


def test_map_drawn_cell_by_cell_equals_the_map_drawn_at_once(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=96, seed=3)
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    for _ in range(5):
        run_simulated(service, 25)
        wait_for_step(page, service.engine.step_id)
    read = "document.querySelector('#wb-block-map canvas[data-part=map]').toDataURL()"
    before = page.evaluate(read)
    page.evaluate("wb.store.notify('theme')")
    next_frame(page)
    assert page.evaluate(read) == before


# ------------------------------------------------------------------------------ the person


def test_hover_shows_a_block_and_click_pins_it_with_its_tokens(
    service: EngineService, serve: Serve, open_page: OpenPage
) -> None:
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    service.pause()
    prompt = [3 + byte for byte in b"The quick brown fox jumps over the lazy dog."]
    service.submit(prompt, SamplingParams(max_tokens=200, ignore_eos=True), lambda event: None, request_id="mine")
    run_steps(service, 3)
    wait_for_step(page, service.pool_snapshot().step_id)
    cell = page.evaluate(f"{LAYOUT}.center(1)")
    canvas = page.locator(MAP)
    canvas.hover(position={"x": cell[0], "y": cell[1]})
    tip = page.locator("#wb-block-map .wb-tip")
    expect(tip).to_contain_text("Block 1")
    expect(tip).to_contain_text("mine")
    expect(page.get_by_label("Block details")).to_contain_text("16 / 16 tokens")
    canvas.click(position={"x": cell[0], "y": cell[1]})
    tokens = page.get_by_label("Block details").locator("[data-part=tokens] span")
    expect(tokens).to_have_text(list("fox·jumps·over·t"))
    expect(page.get_by_label("Block details")).to_contain_text("Tokens 16–31, decoded")
    expect(page.get_by_label("Request details")).to_contain_text("Request mine")
    expect(page.locator("#wb-block-map [data-part=stripTitle]")).to_have_text("mine block table: logical → physical")
    expect(page.locator("#wb-block-map [data-part=stripNote]")).to_have_text("3 blocks in 1 physical run")


def test_keys_move_pin_and_clear(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    service.engine.add(60, 100)
    service.step()
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    wait_for_step(page, 0)
    page.locator(MAP).focus()
    for key in ("ArrowRight", "ArrowRight", "d", "Enter"):
        page.keyboard.press(key)
    page.wait_for_function("wb.store.selection.block === 2 && wb.store.selection.request === 'r1'")
    page.keyboard.press("3")
    expect(page.get_by_role("radio", name="Age")).to_have_attribute("aria-checked", "true")
    page.keyboard.press("Escape")
    page.wait_for_function("wb.store.selection.block === -1 && wb.store.selection.request === null")


def test_chip_lights_a_request_and_dims_the_others(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    service.engine.add(40, 100)
    service.engine.add(20, 100)
    service.step()
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    wait_for_step(page, 0)
    chips = page.locator("#wb-block-map [data-part=chips] .wb-chip")
    expect(chips).to_have_text(["r13", "r22"])
    chips.nth(1).click()
    expect(chips.nth(1)).to_have_attribute("aria-pressed", "true")
    page.mouse.move(2, 2)
    page.wait_for_function("wb.store.hover.request === null")
    assert bottom_pixel(page, 0) == [38, 56, 86], "r1's hue with 74 % canvas"
    assert bottom_pixel(page, 3) == [247, 193, 95], "r2's hue undiluted"


def test_compact_map_follows_the_request_of_its_value(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    service.engine.add(40, 3)
    service.step()
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    page.get_by_role("tab", name="Chat").click()
    compact = page.locator("#wb-compact-map")
    page.evaluate("document.querySelector('#wb-compact-map canvas').dataset.mark = 'same'")
    page.get_by_label("Follow").fill("r1")
    page.get_by_label("Follow").press("Enter")
    expect(compact).to_contain_text("Your request r1")
    expect(compact.locator(".wb-phase .wb-on")).to_have_text("decode 1")
    expect(compact).to_contain_text("3 of 64")
    assert page.evaluate("document.querySelector('#wb-compact-map canvas').dataset.mark") == "same"
    service.step()
    service.step()
    expect(compact.locator(".wb-phase .wb-on")).to_have_text("done")


@pytest.mark.parametrize("width", [1440, 1280, 390])
def test_page_fits_its_width_and_cells_are_whole_pixels(serve: Serve, open_page: OpenPage, width: int) -> None:
    service = FakeService(num_blocks=2048)
    page = open_page(width=width).page
    open_map(page, serve(build_map_app(service)).url)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    layout = page.evaluate(f"(l => [l.columns, l.pitch, l.cell])({LAYOUT})")
    assert layout[0] == (32 if width == 390 else 64)
    assert layout[1] >= 9
    assert [float(value).is_integer() for value in layout] == [True] * 3


def test_colours_follow_the_theme_at_once(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    open_map(page, serve(build_map_app(FakeService())).url)
    assert bottom_pixel(page, 0) == [27, 32, 39]
    page.evaluate("document.body.classList.remove('dark')")
    page.wait_for_function("wb.palette.colors().theme === 'light'")
    next_frame(page)
    assert bottom_pixel(page, 0) == [228, 232, 237]


# ------------------------------------------------------------------------------ the feed


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
    assert shown_states(page) == states_in(service.pool_snapshot()) == [(0, 0, 0, None, -1)] * 50
    service.submit([5] * 40, SamplingParams(max_tokens=5, ignore_eos=True), lambda event: None)
    page.wait_for_function("wb.store.live.stepId >= 5")
    page.wait_for_function("[...wb.store.live.status].every(s => s === 0)")


def test_aborted_request_frees_its_cells(service: EngineService, serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    name = service.submit([9] * 100, SamplingParams(max_tokens=400, ignore_eos=True), lambda event: None)
    page.wait_for_function("[...wb.store.live.status].filter(s => s === 2).length > 6")
    service.abort(name)
    page.wait_for_function("[...wb.store.live.status].every(s => s === 0) && wb.store.live.requests.size === 0")
    expect(page.locator("#wb-block-map [data-part=empty]")).to_have_text(
        "No requests yet. Send a message or add 8 background requests."
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
            format: change(4, 2), kind: change(6, 7), cut: good.slice(0, good.byteLength - 1), good };
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


def test_just_allocated_cells_flash_unless_motion_is_reduced(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    url = serve(build_map_app(service)).url
    pages = {motion: open_page(reduced_motion=motion).page for motion in ("reduce", "no-preference")}
    count = """() => { window.flashes = 0; const draw = wb.mapCanvas.drawFlashes;
        wb.mapCanvas.drawFlashes = (...a) => { window.flashes++; return draw(...a); }; }"""
    for page in pages.values():
        open_map(page, url)
        page.evaluate(count)
    service.engine.add(40, 100)
    service.step()
    for page in pages.values():
        wait_for_step(page, 0)
    pages["no-preference"].wait_for_function("window.flashes > 0 && wb.store.turnedAt.size === 0")
    assert pages["reduce"].evaluate("window.flashes") == 0
    for page in pages.values():
        assert check_pixels(page, service.pool_snapshot())["active"] == 3


def test_summary_for_screen_readers_names_the_totals(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    service.engine.add(40, 100)
    service.step()
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    canvas = page.get_by_role("img", name="Physical KV blocks. 3 of 64 blocks active, 0 cached, 61 free")
    expect(canvas).to_have_attribute("tabindex", "0")
    assert service.engine.state(0).status is BlockStatus.ACTIVE
