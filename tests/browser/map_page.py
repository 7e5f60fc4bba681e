"""A page with the header and both maps over any engine door, and how to read what it shows."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import fastapi
import gradio as gr
import pytest
from playwright.sync_api import Locator, Page

from tests.browser.conftest import WatchedPage
from tests.browser.running_server import RunningServer
from tests.server.fake_service import FakeService
from workbench.engine.service import EngineService
from workbench.engine.worker import Pause
from workbench.sampling_params import SamplingParams
from workbench.server.feed import LiveFeed
from workbench.server.live import build_live_router
from workbench.telemetry.records import BlockStatus, PoolSnapshot, StepRecord
from workbench.ui import explain
from workbench.ui.components.assets import ui_assets
from workbench.ui.components.block_map import compact_map
from workbench.ui.components.header_strip import header_strip
from workbench.ui.pages.blocks import build_blocks_page
from workbench.ui.theme import STYLESHEET, build_theme

# The palette as NOTES.md gives it, dark: an oracle apart from the page's own.
# fmt: off
OWNERS = ["5e99fd", "f7c15f", "f45e96", "65c6e4", "c17429", "89b559",
          "ed9cb5", "309d8b", "8264e7", "ae8aca", "bb4cb5", "a8db9d"]
# fmt: on
NEUTRAL, FREE, CANVAS, CACHED, CACHED_GROUND = "9aa7b5", "1b2027", "12161b", "5d6a78", "161b21"
AT_REST, UNFILLED = 0.16, 0.68

NO_SOCKET = "delete window.WebSocket;"
WAYS = pytest.mark.parametrize("init_script", [None, NO_SOCKET], ids=["websocket", "polling"])
"""Over both transports of the live feed."""

OpenPage = Callable[..., WatchedPage]
Serve = Callable[..., RunningServer]

MAP = "#wb-block-map canvas[data-part=map]"
LAYOUT = """(() => { const box = document.querySelector('#wb-block-map canvas[data-part=map]').parentElement;
  return wb.geometry.mapLayout(wb.dom.innerWidth(box), wb.store.view().numBlocks); })()"""

Color = tuple[int, int, int]


def build_map_app(service: Any, *routers: fastapi.APIRouter, feed: LiveFeed | None = None) -> fastapi.FastAPI:
    """The live feed (the plain one of `service`, or `feed`), routes before its own, and a page of our components."""
    css, head = ui_assets()
    with gr.Blocks(title="map", fill_width=True, analytics_enabled=False) as page:
        header_strip()
        with gr.Tabs(selected="blocks"):
            with gr.Tab("Chat", id="chat"):
                follow = gr.Textbox(label="Follow")
                follow.submit(lambda name: name, follow, compact_map(), show_progress="hidden")
            with gr.Tab("Blocks", id="blocks"):
                build_blocks_page(service)
    app = fastapi.FastAPI()
    for router in (*routers, build_live_router(service, explain, feed=feed)):
        app.include_router(router)
    return gr.mount_gradio_app(
        app,
        page,
        path="/",
        theme=build_theme(),
        css_paths=[STYLESHEET],
        css=css,
        head=head,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
    )


def open_map(page: Page, url: str) -> None:
    """Go to the page, in its dark theme, and wait for the first frame."""
    page.goto(f"{url}/?__theme=dark")
    page.wait_for_function("window.wb && wb.store.service && wb.store.live.numBlocks > 0")
    page.locator(MAP).wait_for(state="visible")


def wait_for_step(page: Page, step_id: int) -> None:
    """Wait until the page has drawn a step."""
    page.wait_for_function("step => wb.store.live.stepId === step", arg=step_id)
    next_frame(page)


def next_frame(page: Page) -> None:
    """Wait until what was notified is drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def bottom_pixel(page: Page, block: int) -> list[int]:
    """Colour at the bottom of a block's cell, where its fill begins."""
    color: list[int] = page.evaluate(
        f"""block => {{ const layout = {LAYOUT}; const [x, y] = layout.at(block);
        const g = document.querySelector('{MAP}').getContext('2d');
        return [...g.getImageData(x + 1, y + layout.cell - 1, 1, 1).data].slice(0, 3); }}""",
        block,
    )
    return color


def shown_states(page: Page) -> list[tuple[int, int, int, tuple[str, ...], int]]:
    """Status, references, fill, owners and logical index of each block that the page shows."""
    rows = page.evaluate(
        """() => { const v = wb.store.view(); return [...v.status].map((s, b) =>
        [s, v.refs[b], v.filled[b], v.ownersOf(b).map(r => r.id), v.logical[b]]); }"""
    )
    return [(status, refs, filled, tuple(owners), logical) for status, refs, filled, owners, logical in rows]


READ_CELLS = """() => {
  const root = document.querySelector('#wb-block-map');
  const canvas = root.querySelector('canvas[data-part=map]');
  const view = wb.store.view();
  const layout = wb.geometry.mapLayout(wb.dom.innerWidth(canvas.parentElement), view.numBlocks);
  const g = canvas.getContext('2d');
  const cells = [];
  for (let block = 0; block < view.numBlocks; block++) {
    const [x, y] = layout.at(block);
    const pixels = g.getImageData(x, y, layout.cell, layout.cell).data;
    const at = (i, j) => [...pixels.slice(4 * (j * layout.cell + i), 4 * (j * layout.cell + i) + 3)];
    cells.push({
      left: Array.from({ length: layout.cell }, (_, j) => at(1, j)),
      corner: at(layout.cell - 1, 0),
      middle: at(layout.cell >> 1, layout.cell >> 1),
    });
  }
  const slots = Object.fromEntries([...view.byId.values()].map(r => [r.id, r.slot]));
  return { cells, slots };
}"""


def check_pixels(page: Page, snapshot: PoolSnapshot) -> dict[str, int]:
    """Assert that every cell of the canvas shows its block of `snapshot`. Returns how many of each kind."""
    read = page.evaluate(READ_CELLS)
    counts = {"free": 0, "cached": 0, "active": 0, "partly": 0, "shared": 0, "pip": 0}
    assert len(read["cells"]) == len(snapshot.blocks)
    for block, cell in zip(snapshot.blocks, read["cells"], strict=True):
        left = [tuple(pixel) for pixel in cell["left"]]
        where = f"block {block.block_id} is {block.status.name}, {block.num_filled} filled, of {block.request_ids}"
        if block.status is BlockStatus.FREE:
            counts["free"] += 1
            assert left == [rgb(FREE)] * len(left), where
        elif block.status is BlockStatus.CACHED:
            counts["cached"] += 1
            assert len(set(left)) > 1, where
            assert all(is_between(pixel, rgb(CACHED_GROUND), rgb(CACHED)) for pixel in left), where
        else:
            assert block.request_ids
            slot = read["slots"][block.request_ids[0]]
            height = int(len(left) * block.num_filled / snapshot.block_size + 0.5)
            hue = rgb(OWNERS[slot % 12] if slot < 24 else NEUTRAL)
            expected = [mix(hue, UNFILLED)] * (len(left) - height) + [mix(hue, AT_REST)] * height
            assert left == expected, where
            is_shared = block.ref_count > 1
            assert (tuple(cell["corner"]) == (255, 255, 255)) == is_shared, where
            has_pip = 12 <= slot < 24 and not is_shared
            assert (tuple(cell["middle"]) == rgb(CANVAS)) == has_pip, where
            counts["active"] += 1
            counts["partly"] += height < len(left)
            counts["shared"] += is_shared
            counts["pip"] += has_pip
    return counts


def rgb(text: str) -> Color:
    return int(text[0:2], 16), int(text[2:4], 16), int(text[4:6], 16)


def mix(color: Color, share: float) -> Color:
    """`color` with a share of the canvas, rounded half up as browsers do."""
    red, green, blue = (int(v * (1 - share) + w * share + 0.5) for v, w in zip(color, rgb(CANVAS), strict=True))
    return red, green, blue


def is_between(color: tuple[int, ...], low: Color, high: Color) -> bool:
    return all(a <= v <= b for v, a, b in zip(color, low, high, strict=True))


def submit_random(service: EngineService, rng: random.Random, num_requests: int) -> list[str]:
    def params() -> SamplingParams:
        return SamplingParams(
            max_tokens=rng.randint(20, 200), ignore_eos=True, temperature=1.0, seed=rng.randint(0, 99)
        )

    prompts = [[rng.randint(3, 258) for _ in range(rng.randint(1, 150))] for _ in range(num_requests)]
    return [service.submit(prompt, params(), lambda event: None) for prompt in prompts]


def run_steps(service: EngineService, num_steps: int) -> None:
    """Let the held engine go on for exactly so many steps, and hold it again."""
    reached = threading.Event()
    seen: list[StepRecord] = []

    def count(record: StepRecord) -> None:
        seen.append(record)
        if len(seen) == num_steps:
            service._put(Pause(True, Future()))  # from the engine's own thread, which takes it before the next step
            reached.set()

    unsubscribe = service.subscribe(count)
    service.resume()
    assert reached.wait(60)
    service.pause()
    unsubscribe()


def run_simulated(service: FakeService, num_steps: int) -> None:
    for _ in range(num_steps):
        service.engine.act_at_random()
        service.step()


def chip(page: Page, name: str) -> Locator:
    """The chip of a request above the map."""
    return page.locator("#wb-block-map [data-part=chips] .wb-chip").filter(has=page.get_by_text(name, exact=True))


def panel(page: Page, name: str) -> Locator:
    return page.get_by_label(name, exact=True)


def rest_pointer(page: Page) -> None:
    """Take the pointer off the map and the chips, so that only the selection is lit."""
    page.mouse.move(2, 2)
    page.wait_for_function("wb.store.hover.request === null && wb.store.hover.block === -1")


def check_shared_corners(page: Page) -> list[int]:
    """Blocks whose upper right pixel is the corner of shared ones, while nothing is lit."""
    page.evaluate("wb.store.select(null, -1)")
    page.wait_for_function("wb.store.litRequest() === null")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    corners: list[int] = page.evaluate(
        f"""() => {{ const layout = {LAYOUT}, g = document.querySelector('{MAP}').getContext('2d');
        return [...wb.store.live.status.keys()].filter(block => {{ const [x, y] = layout.at(block);
          return g.getImageData(x + layout.cell - 1, y, 1, 1).data.slice(0, 3).every(v => v === 255); }}); }}"""
    )
    return corners
