"""The chat page over a tiny engine: how tests start both, ask, and wait."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Page, expect

from app import build_app
from tests.browser.running_server import DEADLINE_MS, RunningServer
from workbench.engine.service import EngineService
from workbench.presets import Preset
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import BlockStatus

expect.set_options(timeout=DEADLINE_MS)

NUM_BLOCKS = 600
MANY_TOKENS = 6000
DEADLINE_S = DEADLINE_MS / 1000
LOADING_S = 100
"""The kernels may have to be compiled first."""

Open = Callable[..., Any]


def preset(model: str, **engine: Any) -> Preset:
    """A greedy preset whose answers go on until they are stopped."""
    settings = {"model": model, "num_blocks": NUM_BLOCKS, "check_integrity": True, **engine}
    return Preset("default", "Default", "For tests.", settings, SamplingParams(temperature=0.0, max_tokens=MANY_TOKENS))


@contextmanager
def running(item: Preset) -> Iterator[tuple[EngineService, RunningServer]]:
    """An engine and its page, both stopped at the end."""
    service = EngineService(item.engine_config())
    other = Preset(
        "small", "Small", "Half the blocks.", {**item.engine, "num_blocks": 300}, SamplingParams(temperature=1.0)
    )
    server = RunningServer(build_app(service, {"default": item, "small": other}, item, show_text=True))
    service.start()
    try:
        yield service, server
    finally:
        server.stop()
        service.shutdown()


def visit(open_page: Open, server: RunningServer, **options: Any) -> Page:
    page: Page = open_page(**options).page
    page.goto(server.url)
    expect(page.locator("#wb-message textarea")).to_be_visible()
    expect(page.locator("#wb-apply")).to_have_text("Apply (no changes)")  # the settings in force have come
    return page


def wait_until(is_so: Callable[[], bool]) -> None:
    """Poll until something outside the page is so; fails at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def active_blocks(service: EngineService) -> int:
    return sum(block.status is BlockStatus.ACTIVE for block in service.pool_snapshot().blocks)


def ask(page: Page, text: str, max_tokens: int | None = None) -> None:
    if max_tokens is not None:
        page.fill("#wb-max-tokens input", str(max_tokens))
    page.fill("#wb-message textarea", text)
    page.click("#wb-send")


def wait_for_text(page: Page) -> None:
    """Wait until an answer is streaming and some of it is there."""
    expect(page.locator(".wb-streaming")).to_have_text(_SOMETHING)


_SOMETHING = re.compile(r"\S")


def finish_reason(page: Page) -> Any:
    """The last part of the last footer."""
    return page.locator(".wb-foot").last.locator("span").last
