"""An engine that is not there, or has failed, is named with its cause; the banner's button builds it anew."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from app import build_app
from tests.browser.chat_page import LOADING_S, Open, ask, finish_reason, preset
from tests.browser.running_server import DEADLINE_MS, RunningServer
from workbench.engine.service import EngineService
from workbench.sampling_params import SamplingParams

pytestmark = pytest.mark.browser

expect.set_options(timeout=DEADLINE_MS)


@pytest.fixture
def visit_engine(
    serve: Callable[..., RunningServer], open_page: Open
) -> Iterator[Callable[[Path], tuple[EngineService, Page]]]:
    """`visit_engine(model path)` → the engine, loaded or not, and its page."""
    services: list[EngineService] = []

    def visit(model: Path) -> tuple[EngineService, Page]:
        item = preset(str(model))
        service = EngineService(item.engine_config())
        services.append(service)
        service.start()
        page: Page = open_page().page
        page.goto(serve(build_app(service, {"default": item}, item, show_text=True)).url)
        return service, page

    yield visit
    for service in services:
        service.shutdown()


def banner(page: Page) -> Locator:
    return page.locator("#wb-header [data-part=error]")


def test_engine_that_could_not_load_is_restarted_once_the_cause_is_mended(
    visit_engine: Callable[[Path], tuple[EngineService, Page]], tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "late.gguf"
    service, page = visit_engine(path)
    button = banner(page).get_by_role("button", name="Restart the engine")
    expect(banner(page)).to_contain_text("The engine is not running")
    expect(banner(page)).to_contain_text("late.gguf")
    banner(page).locator("summary").click()
    expect(banner(page).locator("pre")).to_contain_text("ModelLoadError")
    compact = page.locator("#wb-compact-map .wb-kv dd")
    expect(compact).to_have_text(["–", "–", "–"])

    button.click()
    expect(button).to_be_enabled()
    expect(banner(page)).to_contain_text("late.gguf")
    assert service.status.error is not None

    path.write_bytes(tiny_model.read_bytes())
    button.click()
    expect(banner(page)).to_be_hidden(timeout=LOADING_S * 1000)
    expect(compact).to_have_text(["600", "0 % active", "0 running, 0 waiting"])
    ask(page, "hello", max_tokens=4)
    expect(finish_reason(page)).to_have_text(re.compile("length|stop"))


def test_engine_that_failed_in_a_step_can_be_restarted(
    visit_engine: Callable[[Path], tuple[EngineService, Page]], tiny_model: Path
) -> None:
    service, page = visit_engine(tiny_model)
    service.wait_ready(LOADING_S)
    epoch = service.status.epoch

    def break_it(core: object) -> None:
        def broken(*_: object) -> None:
            raise ZeroDivisionError("a broken kernel")

        core.runner.execute = broken  # type: ignore[attr-defined]

    service._call(break_it)
    service.submit("hello", SamplingParams(max_tokens=4), lambda _: None)
    expect(banner(page)).to_contain_text("The engine reported an error")
    expect(banner(page)).to_contain_text("a broken kernel")
    banner(page).get_by_role("button", name="Restart the engine").click()
    expect(banner(page)).to_be_hidden(timeout=LOADING_S * 1000)
    assert service.status.epoch > epoch
    ask(page, "hello", max_tokens=4)
    expect(finish_reason(page)).to_have_text(re.compile("length|stop"))


def test_engine_that_was_shut_down_says_what_is_left_to_do(
    visit_engine: Callable[[Path], tuple[EngineService, Page]], tiny_model: Path
) -> None:
    service, page = visit_engine(tiny_model)
    service.wait_ready(LOADING_S)
    expect(banner(page)).to_be_hidden()
    service.shutdown()
    expect(banner(page)).to_contain_text("The engine is not running")
    expect(banner(page)).to_contain_text("start the workbench again")
    expect(banner(page).get_by_role("button")).to_have_count(0)
