"""A page with the block map and the timeline over any engine door, a run to show, and how to read what it shows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastapi
import gradio as gr
from playwright.sync_api import Locator, Page

from tests.browser.map_page import next_frame, run_steps, submit_random
from workbench.config import EngineConfig
from workbench.engine.service import EngineService
from workbench.server.live import build_live_router
from workbench.telemetry.records import Decision, StepRecord
from workbench.ui import explain
from workbench.ui.components.assets import ui_assets
from workbench.ui.components.header_strip import header_strip
from workbench.ui.pages.blocks import build_blocks_page
from workbench.ui.pages.timeline import build_timeline_page
from workbench.ui.theme import STYLESHEET, build_theme

VIEW = """(() => { for (const node of document.querySelectorAll('#wb-timeline, #wb-timeline *'))
  if (node.wbTimeline) return node.wbTimeline; })()"""
"""The page's own `Timeline` object."""
CANVAS = "#wb-timeline canvas[data-part=timeline]"


def build_timeline_app(service: Any, selected: str = "timeline") -> fastapi.FastAPI:
    """The live feed with its history, and a page of the header, the map and the timeline, one tab in front."""
    css, head = ui_assets()
    with gr.Blocks(title="timeline", fill_width=True, analytics_enabled=False) as page:
        header_strip()
        with gr.Tabs(selected=selected):
            with gr.Tab("Other", id="other"):
                gr.Markdown("Nothing that is drawn from the history.")
            with gr.Tab("Blocks", id="blocks"):
                build_blocks_page(service)
            with gr.Tab("Timeline", id="timeline"):
                build_timeline_page()
    app = fastapi.FastAPI()
    app.include_router(build_live_router(service, explain))
    options: dict[str, Any] = {"footer_links": [], "run_history": False, "ssr_mode": False}
    look = {"theme": build_theme(), "css_paths": [STYLESHEET], "css": css, "head": head}
    return gr.mount_gradio_app(app, page, path="/", **look, **options)


def open_timeline(page: Page, url: str) -> None:
    """Go to the page, in its dark theme, and wait for the first frame."""
    page.goto(f"{url}/?__theme=dark")
    page.wait_for_function("window.wb && wb.store.service && wb.store.live.numBlocks > 0")
    page.get_by_label("Timeline", exact=True).wait_for(state="visible")


def wait_for_history(page: Page, last: int) -> None:
    """Wait until the timeline has read the steps up to `last` and drawn them."""
    page.wait_for_function(
        f"""last => {{ const v = {VIEW};
        return v && !v.history.isEmpty && v.history.last === last; }}""",
        arg=last,
    )
    next_frame(page)


def read(page: Page, expression: str) -> Any:
    """Evaluate an expression over `v`, the timeline, once what was notified is drawn."""
    next_frame(page)
    return page.evaluate(f"() => {{ const v = {VIEW}; return {expression}; }}")


def part(page: Page, name: str) -> Locator:
    return page.locator(f"#wb-timeline [data-part={name}]")


def pixel(page: Page, x: float, y: float) -> tuple[int, ...]:
    """Colour of the canvas at a point in CSS pixels."""
    color = page.evaluate(
        f"""([x, y]) => {{ const g = document.querySelector('{CANVAS}').getContext('2d');
        return [...g.getImageData(x, y, 1, 1).data].slice(0, 3); }}""",
        [int(x), int(y)],
    )
    return tuple(color)


def click(page: Page, x: float, y: float) -> None:
    page.locator(CANVAS).click(position={"x": x, "y": y})


@contextmanager
def recorded_run(
    model: Path, num_steps: int = 150, **settings: Any
) -> Iterator[tuple[EngineService, list[StepRecord]]]:
    """A real engine held after a run in which two dozen requests fought for 80 blocks, and its records."""
    sizes = {"num_blocks": 80, "max_num_batched_tokens": 64, "max_num_seqs": 16, "check_integrity": True}
    service = EngineService(EngineConfig(model=str(model), **{**sizes, **settings}))
    service.start()
    try:
        service.wait_ready(100)
        service.pause()
        rng = random.Random(7)
        for _ in range(3):
            submit_random(service, rng, 8)
            run_steps(service, num_steps // 3)
        yield service, service.recorder.since(-1)
    finally:
        service.shutdown()


def preemptions(records: list[StepRecord]) -> list[tuple[int, str]]:
    """Step and request of each preemption."""
    return [(r.step_id, e.request_id) for r in records for e in r.explanations if e.decision is Decision.PREEMPTED]


def middle_of_row(place: int) -> float:
    """Vertical middle of a shown row on a wide page: rows of 20 px from 146 px on."""
    return 146 + 20 * place + 10


def show_row(page: Page, name: str, step: int) -> tuple[float, int]:
    """Bring a request's row and a step into the window. Returns the step's left pixel and the row's place."""
    part(page, "find").fill(name)
    read(page, f"(v.axis.show({step} - 20, {step} + 20), v.redraw())")
    names = read(page, "v.rows.slice(v.layout.firstRow).map(r => r.id)")
    return read(page, f"v.axis.x({step})"), names.index(name)
