"""The page over a saved run: what was recorded can be looked at, and what needs an engine cannot be pressed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app import build_app
from tests.browser.chat_page import Open
from tests.browser.running_server import RunningServer
from tests.telemetry.test_history import random_run
from workbench.presets import Preset
from workbench.sampling_params import SamplingParams
from workbench.server.replay import open_replay
from workbench.telemetry.run_file import write_run

pytestmark = pytest.mark.browser

PRESET = Preset("default", "Default", "For tests.", {}, SamplingParams(temperature=0.0, max_tokens=8))
WHY = "This is a saved run: nothing is computed. Start the workbench without --replay to ask a model."
ASKING = (
    "#wb-message textarea",
    "#wb-send",
    "#wb-stop",
    "#wb-clear",
    "#wb-regenerate",
    "#wb-background",
    "#wb-burst",
    "#wb-preempt",
    "#wb-apply",
    "button.wb-suggestion >> nth=0",
    "button.wb-suggestion >> nth=1",
    "button.wb-suggestion >> nth=2",
)


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run.jsonl.gz"
    base, records = random_run(120, seed=2).history.base_and_records()
    path.write_bytes(b"".join(write_run(base, records, {"state": "ready", "model_name": "simulated"}, "paged")))
    return path


@pytest.fixture
def visit_run(serve: Callable[..., RunningServer], open_page: Open, run_file: Path) -> Callable[..., Page]:
    """`visit_run(**options of open_page)` → the page over the run, once its last step is there."""
    url = serve(build_app(open_replay(run_file), {"default": PRESET}, PRESET, show_text=True)).url

    def visit(**options: Any) -> Page:
        page: Page = open_page(**options).page
        page.goto(url)
        page.wait_for_function("() => window.wb?.store.live.stepId === 119")
        return page

    return visit


def test_replay_opens_on_the_blocks_of_its_last_step_and_says_that_nothing_is_computed(
    visit_run: Callable[..., Page],
) -> None:
    page = visit_run()
    expect(page.get_by_role("tab", name="Blocks")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#wb-block-map canvas").first).to_be_visible()
    expect(page.locator("#wb-header [data-part=notices]")).to_contain_text(
        "Replay of run.jsonl.gz: nothing is computed"
    )
    figures = page.locator("#wb-status-line [data-part=elsewhere]")
    expect(figures).to_have_text("Figures of a saved run, measured where it was computed")
    expect(figures).to_be_visible()
    expect(page.locator("#wb-status-line [data-part=here]")).to_be_hidden()


def test_replay_disables_all_that_asks_an_engine_and_says_why_beside_it(visit_run: Callable[..., Page]) -> None:
    page = visit_run()
    expect(page.locator("#wb-apply-note")).to_have_text(WHY)
    page.get_by_role("tab", name="Chat").click()
    for selector in ASKING:
        expect(page.locator(selector)).to_be_disabled()
    expect(page.locator(".wb-card", has=page.locator("#wb-burst"))).to_contain_text(WHY)
    empty = page.locator(".wb-empty-chat")
    expect(empty).to_contain_text("This is a saved run: nothing is computed.")
    expect(empty).to_contain_text("Start the workbench without --replay to ask a model.")


def test_replay_tells_only_what_the_file_tells_of_the_engine(visit_run: Callable[..., Page]) -> None:
    sidebar = visit_run().locator("#wb-sidebar")
    expect(sidebar.get_by_label("Blocks", exact=True)).to_have_value("24")
    expect(sidebar.get_by_label("Token budget")).to_have_value("64")
    expect(sidebar.get_by_label("Layout")).to_have_value("Paged")
    assert sidebar.locator("input:enabled, textarea:enabled, select:enabled").count() == 0
    assert sidebar.get_by_label("Policy").count() == 0


def test_replay_keeps_time_travel_timeline_and_exports(visit_run: Callable[..., Page]) -> None:
    page = visit_run()
    page.evaluate("() => wb.store.seek(60)")
    page.wait_for_function("() => wb.store.view().stepId === 60")
    page.get_by_role("tab", name="Timeline").click()
    expect(page.locator("#wb-timeline canvas").first).to_be_visible()
    page.keyboard.press("Escape")
    statuses = page.evaluate(
        "async () => Promise.all(['history/trace', 'history/save'].map(async path => (await fetch(path)).status))"
    )
    assert statuses == [200, 200]


def test_tour_over_a_replay_waits_to_be_asked_and_drives_nothing(visit_run: Callable[..., Page]) -> None:
    page = visit_run(first_visit=True)
    guide = page.locator(".wb-guide")
    expect(page.locator("#wb-help")).to_be_visible()
    expect(guide).to_be_hidden()
    page.click("#wb-help")
    for place in range(4):
        expect(guide.locator("[data-part=progress]")).to_have_text(f"{place + 1} / 4")
        expect(guide.locator("[data-part=act]")).to_be_disabled()
        expect(guide).to_contain_text(WHY)
        guide.locator("[data-part=next]").click()
    expect(guide).to_be_hidden()
    assert page.evaluate("() => localStorage.getItem('wb-guide')") is None  # the first visit to an engine is to come


def test_replay_says_why_in_chinese(visit_run: Callable[..., Page]) -> None:
    page = visit_run(locale="zh-CN")
    expect(page.locator("#wb-apply-note")).to_have_text(
        "这是已保存的运行：不会进行任何计算。要向模型提问，请不带 --replay 启动工作台。"
    )


def test_replay_names_its_file_in_the_visitors_language(visit_run: Callable[..., Page]) -> None:
    notices = visit_run(locale="zh-CN").locator("#wb-header [data-part=notices]")
    expect(notices).to_have_text("run.jsonl.gz 的回放：不会进行任何计算")
