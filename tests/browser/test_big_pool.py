"""Pools of more than 16,384 blocks: all of them on one small map, and a lens for the details."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.map_page import (
    AT_REST,
    CACHED,
    CANVAS,
    FREE,
    MAP,
    OWNERS,
    UNFILLED,
    OpenPage,
    Serve,
    build_map_app,
    mix,
    next_frame,
    open_map,
    rgb,
    shown_states,
    wait_for_step,
)
from tests.browser.running_server import DEADLINE_MS
from tests.server.fake_service import FakeService
from tests.server.live_client import states_in
from workbench.telemetry.records import BlockState, BlockStatus

expect.set_options(timeout=DEADLINE_MS)

NUM_BLOCKS = 20_000
CACHED_SHARE = 0.55
VIEW = "[...document.querySelectorAll('#wb-block-map, #wb-block-map *')].find(node => node.wbMap).wbMap"
READ = f"""() => {{
  const layout = ({VIEW}).layout, g = document.querySelector('{MAP}').getContext('2d');
  const image = g.getImageData(0, 0, layout.width, layout.height);
  const pixel = (x, y) => [...image.data.slice(4 * (y * image.width + x), 4 * (y * image.width + x) + 3)];
  return [...wb.store.view().status.keys()].map(block => pixel(...layout.at(block)));
}}"""


def busy_service() -> FakeService:
    """Most of the pool is held by three large contexts, one of them shared by two; one ended and stays cached."""
    service = FakeService(num_blocks=NUM_BLOCKS)
    service.engine.budget = 1_000_000
    service.engine.add(16 * 2000, 1, prefix="system")
    service.step()
    service.step()
    for num_tokens, prefix in ((16 * 9000 + 5, None), (16 * 3000, "one"), (16 * 3100, "one")):
        service.engine.add(num_tokens, 500, prefix)
        service.step()
    return service


def layout_of(page: Page) -> dict[str, Any]:
    layout: dict[str, Any] = page.evaluate(
        f"(({{columns, pitch, cell, zoom, isBig, isCoarse, width, height}}) => "
        f"({{columns, pitch, cell, zoom, isBig, isCoarse, width, height}}))(({VIEW}).layout)"
    )
    return layout


def expected_pixel(block: BlockState, hues: dict[str, str]) -> tuple[int, int, int]:
    """The one colour of a small cell."""
    if block.status is BlockStatus.FREE:
        return rgb(FREE)
    if block.status is BlockStatus.CACHED:
        return mix(rgb(CACHED), CACHED_SHARE)
    hue = rgb(hues[block.request_ids[0]])
    if block.ref_count > 1:
        white = [v * (1 - CACHED_SHARE) + 255 * CACHED_SHARE for v in hue]
        return int(white[0] + 0.5), int(white[1] + 0.5), int(white[2] + 0.5)
    level = int(4 * block.num_filled / 16 + 0.5) / 4
    return mix(hue, AT_REST + (UNFILLED - AT_REST) * (1 - level))


def test_every_block_of_a_big_pool_has_its_pixel(serve: Serve, open_page: OpenPage) -> None:
    service = busy_service()
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    wait_for_step(page, service.engine.step_id)
    snapshot = service.pool_snapshot()
    assert shown_states(page) == states_in(snapshot)
    layout = layout_of(page)
    assert (layout["isBig"], layout["isCoarse"], layout["zoom"]) == (True, True, 1)
    assert layout["height"] < 600
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440
    slots = page.evaluate("Object.fromEntries([...wb.store.live.byId.values()].map(r => [r.id, r.slot]))")
    hues = {name: OWNERS[slot] for name, slot in slots.items()}
    read = [tuple(pixel) for pixel in page.evaluate(READ)]
    assert read == [expected_pixel(block, hues) for block in snapshot.blocks]
    assert len(set(read)) >= 6, "free, cached, three hues, shared and half full"
    assert rgb(CANVAS) not in read
    for _ in range(5):
        service.step()
    wait_for_step(page, service.engine.step_id)
    read = [tuple(pixel) for pixel in page.evaluate(READ)]
    assert read == [expected_pixel(block, hues) for block in service.pool_snapshot().blocks]


def test_lens_enlarges_by_keys_wheel_and_buttons_and_moves_by_dragging(serve: Serve, open_page: OpenPage) -> None:
    service = busy_service()
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    wait_for_step(page, service.engine.step_id)
    base = layout_of(page)
    canvas = page.locator(MAP)
    at = page.evaluate(f"({VIEW}).layout.center(10_050)")
    block_there = f"([x, y]) => ({VIEW}).layout.blockAt(x, y, {NUM_BLOCKS})"

    canvas.click(position={"x": at[0], "y": at[1]})
    page.wait_for_function("wb.store.selection.block === 10_050")
    page.mouse.wheel(0, -100)
    page.mouse.wheel(0, -100)
    page.wait_for_function(f"({VIEW}).layout.zoom === 4")
    assert page.evaluate(block_there, at) == 10_050, "what is under the pointer stays there"
    layout = layout_of(page)
    assert (layout["width"], layout["height"]) == (base["width"], base["height"])
    assert (layout["pitch"], layout["isCoarse"]) == (4 * base["pitch"], False)
    check_enlarged_cells(page, service)

    page.mouse.move(*on_screen(page, at))
    page.mouse.down()
    page.mouse.move(*on_screen(page, [at[0] + 3 * layout["pitch"], at[1]]), steps=4)
    page.mouse.up()
    next_frame(page)
    assert page.evaluate(block_there, [at[0] + 3 * layout["pitch"], at[1]]) == 10_050
    assert page.evaluate("wb.store.selection.block") == 10_050, "a drag selects nothing"

    page.keyboard.press("0")
    page.wait_for_function(f"({VIEW}).layout.zoom === 1")
    zoom = page.get_by_role("group", name="Zoom of the map")
    zoom.get_by_role("button", name="Zoom in").click()
    expect(zoom).to_contain_text("2×")
    zoom.get_by_role("button", name="Zoom out").click()
    expect(zoom).to_contain_text("1×")
    expect(zoom.get_by_role("button", name="Zoom out")).to_be_disabled()

    canvas.focus()
    page.evaluate("wb.store.select(null, 0)")
    for key in ("+", "+", "ArrowDown", *["ArrowLeft"] * 3):
        page.keyboard.press(key)
    page.wait_for_function(f"({VIEW}).cursor === 0 && ({VIEW}).layout.isVisible(0)")


def on_screen(page: Page, point: list[float]) -> tuple[float, float]:
    box = page.locator(MAP).bounding_box()
    assert box is not None
    return box["x"] + point[0], box["y"] + point[1]


def check_enlarged_cells(page: Page, service: FakeService) -> None:
    """Visible cells have the look of a small pool's: the hue of the owner, or of the ground."""
    page.evaluate("wb.store.select(null, -1)")
    page.mouse.move(2, 2)
    page.wait_for_function("wb.store.litRequest() === null && wb.store.hover.block === -1")
    next_frame(page)
    cells = page.evaluate(
        f"""() => {{ const layout = ({VIEW}).layout, g = document.querySelector('{MAP}').getContext('2d');
        const inside = b => {{ const [x, y] = layout.at(b);
          return x >= layout.edge.left && y >= layout.edge.top
            && x + layout.pitch <= layout.width && y + layout.pitch <= layout.height; }};
        return [...wb.store.live.status.keys()].filter(inside).map(b => {{ const [x, y] = layout.at(b);
          const [red, green, blue] = g.getImageData(x + 1, y + layout.cell - 1, 1, 1).data;
          return [b, wb.store.live.ownerOf(b)?.slot ?? null, red, green, blue]; }}); }}"""
    )
    assert len(cells) > 300
    for block, slot, *pixel in cells:
        status = service.engine.state(block).status
        if status is BlockStatus.ACTIVE:
            assert tuple(pixel) == mix(rgb(OWNERS[slot]), AT_REST), block
        elif status is BlockStatus.FREE:
            assert tuple(pixel) == rgb(FREE), block
    page.evaluate("wb.store.select(null, 10_050)")
    page.locator(MAP).focus()


def test_small_map_of_a_big_pool_dims_and_filters(serve: Serve, open_page: OpenPage) -> None:
    service = busy_service()
    page = open_page(width=390).page
    open_map(page, serve(build_map_app(service)).url)
    wait_for_step(page, service.engine.step_id)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    layout = layout_of(page)
    assert layout["isCoarse"]
    assert layout["width"] <= 390
    free, before = service.pool_snapshot().blocks[-1].block_id, page.evaluate(READ)
    page.evaluate("wb.store.toggleState('cached')")
    next_frame(page)
    after = page.evaluate(READ)
    changed = {
        block.status for block in service.pool_snapshot().blocks if before[block.block_id] != after[block.block_id]
    }
    assert changed == {BlockStatus.ACTIVE}
    page.evaluate("wb.store.toggleState('free')")
    next_frame(page)
    assert page.evaluate(READ)[free] != before[free]


def test_compact_map_of_a_big_pool_stays_small(serve: Serve, open_page: OpenPage) -> None:
    service = busy_service()
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    wait_for_step(page, service.engine.step_id)
    page.get_by_role("tab", name="Chat").click()
    canvas = page.locator("#wb-compact-map canvas")
    canvas.wait_for()
    next_frame(page)
    size = page.evaluate("(({ width, height }) => [width, height])(document.querySelector('#wb-compact-map canvas'))")
    assert size[1] <= 240
    colors = page.evaluate(
        """() => { const c = document.querySelector('#wb-compact-map canvas');
        const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set();
        for (let i = 0; i < data.length; i += 4) seen.add(data.slice(i, i + 3).join());
        return [...seen].map(text => text.split(',').map(Number)); }"""
    )
    slots = page.evaluate("[...wb.store.live.byId.values()].map(r => r.slot)")
    assert {mix(rgb(OWNERS[slot]), AT_REST) for slot in slots} <= {tuple(color) for color in colors}
