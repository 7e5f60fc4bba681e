"""The map in a real browser shows what the engine's own pool holds, over both transports."""

from __future__ import annotations

import random

import pytest
from playwright.sync_api import Page, expect

from tests.browser.map_page import (
    LAYOUT,
    MAP,
    WAYS,
    OpenPage,
    Serve,
    bottom_pixel,
    build_map_app,
    check_pixels,
    next_frame,
    open_map,
    run_simulated,
    run_steps,
    shown_states,
    submit_random,
    wait_for_step,
)
from tests.server.fake_service import FakeService
from tests.server.live_client import states_in
from workbench.engine.service import EngineService
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import BlockStatus

PICTURE = f"document.querySelector('{MAP}').toDataURL()"

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
    page.wait_for_function("document.fonts.status === 'loaded'")
    next_frame(page)
    before = page.evaluate(PICTURE)
    page.evaluate("wb.store.notify('theme')")
    next_frame(page)
    assert page.evaluate(PICTURE) == before


def test_map_is_drawn_anew_when_a_font_comes_late(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=96, seed=3)
    service.step()
    page = open_page().page
    fonts: list[str] = []
    page.on("request", lambda request: fonts.append(request.url) if request.url.endswith(".woff2") else None)
    open_map(page, serve(build_map_app(service)).url)
    page.wait_for_function("document.fonts.status === 'loaded'")
    next_frame(page)
    page.evaluate(
        """async url => {
        window.heard = [];
        wb.store.subscribe(topics => window.heard.push(...topics));
        const face = new FontFace('late', `url(${url})`);
        document.fonts.add(face);
        await face.load(); }""",
        fonts[0],
    )
    page.wait_for_function("window.heard.includes('theme')")  # told once all fonts under way have come


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


def test_layout_takes_the_columns_and_pitch_that_fit(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    open_map(page, serve(build_map_app(FakeService())).url)
    sizes = [[802, 2048], [358, 2048], [1400, 16_384], [802, 64], [358, 64]]
    layouts = page.evaluate(
        "sizes => sizes.map(s => wb.geometry.mapLayout(...s)).map(l => [l.columns, l.pitch, l.rows])", sizes
    )
    assert layouts == [[64, 12, 32], [32, 10, 64], [128, 10, 128], [16, 28, 4], [16, 20, 4]]


def test_colours_follow_the_theme_at_once(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    open_map(page, serve(build_map_app(FakeService())).url)
    assert bottom_pixel(page, 0) == [27, 32, 39]
    page.evaluate("document.body.classList.remove('dark')")
    page.wait_for_function("wb.palette.colors().theme === 'light'")
    next_frame(page)
    assert bottom_pixel(page, 0) == [228, 232, 237]


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
    pages["no-preference"].wait_for_function("window.flashes > 0 && wb.store.flashes.size === 0")
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


def test_legend_keeps_blocks_of_one_state_in_front(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64, seed=11)
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    while {b.status for b in service.pool_snapshot().blocks} != set(BlockStatus) or not shared_blocks(service):
        run_simulated(service, 1)
    wait_for_step(page, service.engine.step_id)
    blocks = service.pool_snapshot().blocks
    before = cell_images(page)
    states = {
        "Active": {b.block_id for b in blocks if b.status is BlockStatus.ACTIVE},
        "Shared": shared_blocks(service),
        "Cached": {b.block_id for b in blocks if b.status is BlockStatus.CACHED},
    }
    free = {b.block_id for b in blocks if b.status is BlockStatus.FREE}
    for name, kept in states.items():
        button = page.locator("#wb-block-map .wb-totals").get_by_role("button", name=name)
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        next_frame(page)
        after = cell_images(page)
        assert {i for i in range(64) if after[i] == before[i]} == kept | free, name
    page.locator("#wb-block-map .wb-key").get_by_role("button", name="free", exact=True).click()
    next_frame(page)
    after = cell_images(page)
    assert all(after[i] != before[i] for i in range(64)), "free cells are lit, all others step back"
    run_simulated(service, 3)
    wait_for_step(page, service.engine.step_id)
    drawn = cell_images(page)
    page.evaluate("wb.store.notify('theme')")
    next_frame(page)
    assert cell_images(page) == drawn, "changed cells are drawn by the same filter"
    page.locator(MAP).focus()
    page.keyboard.press("Escape")
    next_frame(page)
    check_pixels(page, service.pool_snapshot())


def shared_blocks(service: FakeService) -> set[int]:
    return {block.block_id for block in service.pool_snapshot().blocks if block.ref_count > 1}


def cell_images(page: Page) -> list[str]:
    """The pixels of each cell, as text to compare."""
    images: list[str] = page.evaluate(
        f"""() => {{ const layout = {LAYOUT}, g = document.querySelector('{MAP}').getContext('2d');
        return [...wb.store.view().status.keys()].map(block => {{ const [x, y] = layout.at(block);
          return g.getImageData(x, y, layout.cell, layout.cell).data.join(); }}); }}"""
    )
    return images


def test_keys_of_the_map_are_read_in_full_on_a_narrow_page(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(width=390).page
    open_map(page, serve(build_map_app(FakeService(num_blocks=64))).url)
    page.get_by_label("Keys of the block map").click()
    words = page.locator("#wb-block-map .wb-keys p").bounding_box()
    assert words is not None
    assert words["x"] >= 0
    assert words["x"] + words["width"] <= 390
