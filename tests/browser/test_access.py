"""The whole page behind a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from app import build_app
from tests.browser.running_server import DEADLINE_MS, RunningServer
from workbench.engine.service import EngineService
from workbench.presets import Preset
from workbench.sampling_params import SamplingParams
from workbench.server.access import TokenGate

expect.set_options(timeout=DEADLINE_MS)

TOKEN = "a token of its own"
PRESET = Preset("default", "Default", "For tests.", {}, SamplingParams(temperature=0.0, max_tokens=8))
FETCH_STATUS = "async path => (await fetch(path)).status"
CONNECTED = "() => window.wb?.store.live?.stepId >= 0"
Serve = Callable[..., RunningServer]
Open = Callable[..., Any]


@pytest.fixture
def guarded(service: EngineService, serve: Serve) -> str:
    app = build_app(service, {"default": PRESET}, PRESET, show_text=True)
    return serve(TokenGate(app, TOKEN)).url


def test_visitor_without_the_token_sees_how_to_bring_it_and_nothing_else(guarded: str, open_page: Open) -> None:
    watched = open_page()
    watched.expects_a_lost_server = True  # 401 is what it should be
    page = watched.page
    page.goto(guarded)
    expect(page.locator("h1")).to_have_text("This workbench needs its token")
    assert page.locator("#wb-message").count() == 0
    assert [page.evaluate(FETCH_STATUS, path) for path in ("/live/frame", "/history/range", "/config")] == [401] * 3


def test_visitor_with_the_token_chats_and_sees_the_engine(guarded: str, open_page: Open) -> None:
    page = open_page().page
    page.goto(f"{guarded}/?token={TOKEN}")
    assert page.url in (guarded, f"{guarded}/")
    expect(page.locator("#wb-apply")).to_have_text("Apply (no changes)")
    page.fill("#wb-message textarea", "hello")
    page.click("#wb-send")
    expect(page.locator(".wb-foot").last).to_contain_text("TTFT")
    page.wait_for_function(CONNECTED)
    assert page.evaluate(FETCH_STATUS, "/history/range") == 200
    again = page.context.new_page()
    again.goto(guarded)
    expect(again.locator("#wb-message textarea")).to_be_visible()
