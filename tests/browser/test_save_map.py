"""The map as files: a picture of what is shown, and the state of the shown step as JSON."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page

from tests.browser.map_page import (
    MAP,
    OpenPage,
    Serve,
    build_map_app,
    next_frame,
    open_map,
    run_simulated,
    wait_for_step,
)
from tests.server.fake_service import FakeService

EDGE, TITLE_HEIGHT = 12, 44


def save(page: Page, kind: str, folder: Path) -> Path:
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save the map as {kind}").click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_picture_holds_the_map_pixel_for_pixel_below_its_title(
    serve: Serve, open_page: OpenPage, tmp_path: Path
) -> None:
    service = FakeService(num_blocks=64, seed=3)
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    run_simulated(service, 40)
    wait_for_step(page, 39)
    page.evaluate("wb.store.toggleState('shared')")
    next_frame(page)
    shown = page.evaluate(f"document.querySelector('{MAP}').toDataURL()")
    path = save(page, "PNG", tmp_path)
    assert path.name == "workbench-map-step-39.png"
    drawn = Image.open(io.BytesIO(base64.b64decode(shown.split(",")[1])))
    with Image.open(path) as saved:
        assert saved.size == (drawn.width + 2 * EDGE, drawn.height + TITLE_HEIGHT + 2 * EDGE)
        ground = Image.new("RGBA", drawn.size, saved.getpixel((0, 0)))
        box = (EDGE, TITLE_HEIGHT + EDGE, EDGE + drawn.width, TITLE_HEIGHT + EDGE + drawn.height)
        inside, title = np.asarray(saved.crop(box)), np.asarray(saved.crop((0, 0, saved.width, TITLE_HEIGHT)))
    expected = np.asarray(Image.alpha_composite(ground, drawn))
    assert np.abs(inside.astype(int) - expected.astype(int)).max() <= 1
    assert len(np.unique(title.reshape(-1, 4), axis=0)) > 4, "model, step and counts are written there"


def test_json_tells_every_block_of_the_shown_step(serve: Serve, open_page: OpenPage, tmp_path: Path) -> None:
    service = FakeService(num_blocks=64, seed=3)
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    run_simulated(service, 30)
    snapshot = service.pool_snapshot()
    names = {request.request_id for request in service.engine.running + service.engine.waiting}
    run_simulated(service, 10)
    wait_for_step(page, 39)
    page.evaluate("wb.store.seek(29)")
    page.wait_for_function("wb.store.view().stepId === 29")
    path = save(page, "JSON", tmp_path)
    assert path.name == "workbench-map-step-29.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    assert {key: told[key] for key in ("format", "version", "model", "step", "num_blocks", "block_size")} == {
        "format": "workbench-map",
        "version": 1,
        "model": "simulated",
        "step": 29,
        "num_blocks": 64,
        "block_size": 16,
    }
    assert {request["id"] for request in told["requests"]} == names
    for told_block, block in zip(told["blocks"], snapshot.blocks, strict=True):
        assert told_block["id"] == block.block_id
        assert told_block["status"] == block.status.name.lower()
        assert told_block["owners"] == list(block.request_ids)
        assert (told_block["filled"], told_block["references"], told_block["logical_index"]) == (
            block.num_filled,
            block.ref_count,
            block.logical_index,
        )
