"""The chat in a real browser over a real engine: a tiny random model, and once the default model.

What the engine holds is read from the engine itself (`pool_snapshot`, `num_open_requests`), never
from what the page shows.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app import build_app
from tests.browser.chat_page import (
    LOADING_S,
    NUM_BLOCKS,
    Open,
    active_blocks,
    ask,
    finish_reason,
    preset,
    running,
    visit,
    wait_for_text,
    wait_until,
)
from tests.browser.running_server import DEADLINE_MS, RunningServer
from tests.ui.scripted_service import ScriptedService
from workbench.config import EngineConfig
from workbench.engine.service import EngineService
from workbench.telemetry.records import FinishReason

pytestmark = pytest.mark.browser
expect.set_options(timeout=DEADLINE_MS)

# --------------------------------------------------------------------------------- answers

COUNT_UPDATES = """() => {
  window.lengths = new Set();
  new MutationObserver(() => {
    const body = document.querySelector('.bot-row .wb-body:not(.wb-waiting)');
    if (body) window.lengths.add(body.textContent.length);
  }).observe(document.querySelector('#wb-chatbot'), {subtree: true, childList: true, characterData: true});
}"""


def test_chat_answer_streams_in_more_than_one_update(chat: Any):
    _, page = chat
    page.evaluate(COUNT_UPDATES)
    ask(page, "hello", max_tokens=440)
    expect(finish_reason(page)).to_have_text("length")
    assert len(page.evaluate("[...window.lengths]")) >= 3
    footer = page.locator(".wb-foot").inner_text()
    for words in ("TTFT", "ITL p50", "p95", "tok/s", "prompt", "440 out"):
        assert words in footer


def test_stop_ends_the_answer_with_abort_and_frees_its_blocks(chat: Any):
    service, page = chat
    ask(page, "hello")
    wait_for_text(page)
    assert active_blocks(service) > 0
    page.click("#wb-stop")
    expect(finish_reason(page)).to_have_text("abort")
    expect(page.locator("#wb-send")).to_be_enabled()
    expect(page.locator("#wb-stop")).to_be_disabled()
    wait_until(lambda: active_blocks(service) == 0)


def test_regenerate_replaces_the_last_answer(chat: Any):
    service, page = chat
    requests: set[str] = set()
    service.subscribe(lambda record: requests.update(state.request_id for state in record.requests))
    ask(page, "hello", max_tokens=40)
    expect(finish_reason(page)).to_have_text("length")
    first = page.locator(".bot-row .wb-body").inner_text()
    ask(page, "more", max_tokens=20)
    expect(page.locator(".bot-row")).to_have_count(2)
    expect(finish_reason(page)).to_have_text("length")
    page.click("#wb-regenerate")
    wait_until(lambda: len(requests) == 3)  # on a fast machine the answer is over before its buttons could be seen
    expect(page.locator("#wb-send")).to_be_enabled()
    expect(page.locator(".bot-row")).to_have_count(2)
    expect(page.locator(".user-row")).to_have_count(2)
    assert page.locator(".bot-row .wb-body").first.inner_text() == first


@pytest.mark.parametrize("how", ["close", "leave"])
def test_closing_the_tab_mid_answer_frees_every_block(tiny: Any, open_page: Open, how: str):
    service, server = tiny
    watched = open_page()
    page = watched.page
    page.goto(server.url)
    ask(page, "hello")
    wait_for_text(page)
    assert active_blocks(service) > 0
    if how == "close":
        page.close()
    else:
        page.goto("about:blank")
        watched.errors.clear()  # Gradio's own script reports its stream as broken when the page is left
    wait_until(lambda: service.num_open_requests == 0)
    assert active_blocks(service) == 0


def test_closing_the_tab_while_the_request_waits_removes_it_from_the_queue(tiny: Any, open_page: Open):
    service, server = tiny
    page = visit(open_page, server)
    service.pause()
    try:
        ask(page, "hello")
        wait_until(lambda: service.num_open_requests == 1)
        expect(page.locator(".wb-waiting")).to_have_text("queued")
        page.close()
    finally:
        service.resume()
    wait_until(lambda: service.num_open_requests == 0)
    assert active_blocks(service) == 0


def test_two_people_stream_at_once(tiny: Any, open_page: Open):
    service, server = tiny
    first, second = visit(open_page, server), visit(open_page, server)
    ask(first, "hello")
    ask(second, "good day")
    wait_for_text(first)
    wait_for_text(second)
    assert service.num_open_requests == 2
    first.click("#wb-stop")
    expect(finish_reason(first)).to_have_text("abort")
    wait_for_text(second)
    second.click("#wb-stop")
    expect(finish_reason(second)).to_have_text("abort")
    wait_until(lambda: active_blocks(service) == 0)


def test_fifth_tab_of_one_browser_still_chats_while_the_others_stream(tiny: Any, open_page: Open):
    service, server = tiny
    tabs = [visit(open_page, server)]
    for _ in range(4):
        page = tabs[0].context.new_page()
        page.goto(server.url)
        expect(page.locator("#wb-apply")).to_have_text("Apply (no changes)")
        tabs.append(page)
    for page in tabs[:2]:
        ask(page, "hello")
        wait_for_text(page)
    ask(tabs[4], "hello", max_tokens=20)
    expect(finish_reason(tabs[4])).to_have_text("length")
    for page in tabs:
        page.close()
    wait_until(lambda: service.num_open_requests == 0)


def test_new_chat_forgets_the_conversation(chat: Any):
    _, page = chat
    ask(page, "hello", max_tokens=4)
    expect(finish_reason(page)).to_have_text("length")
    page.click("#wb-clear")
    expect(page.locator(".bot-row")).to_have_count(0)
    expect(page.locator("#wb-regenerate")).to_be_disabled()


def test_keyboard_alone_sends_breaks_lines_and_stops(chat: Any):
    _, page = chat
    assert page.evaluate("document.activeElement.closest('#wb-message') !== null")
    page.keyboard.type("first line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second line")
    page.keyboard.press("Enter")
    expect(page.locator(".user-row .wb-body")).to_have_text("first linesecond line")
    wait_for_text(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "wb-stop"
    page.keyboard.press("Enter")
    expect(finish_reason(page)).to_have_text("abort")


# ------------------------------------------------------------------------------- refusals


def test_message_that_can_never_fit_is_refused_in_place_and_the_next_one_works(chat: Any):
    _, page = chat
    ask(page, "x" * 9000)
    error = page.locator(".bot-row .wb-note-error")
    expect(error).to_have_count(1)
    expect(error).to_contain_text("8,192")
    expect(page.locator("#wb-send")).to_be_enabled()
    page.click("#wb-clear")
    ask(page, "short", max_tokens=4)
    expect(finish_reason(page)).to_have_text("length")


def test_full_context_offers_to_drop_the_oldest_turns(chat: Any):
    _, page = chat
    ask(page, "a" * 5000, max_tokens=4)
    expect(finish_reason(page)).to_have_text("length")
    expect(page.locator("#wb-drop-oldest")).to_be_hidden()
    ask(page, "b" * 5000)
    expect(page.locator(".wb-note-error")).to_have_count(1)
    page.click("#wb-drop-oldest")
    expect(page.locator(".user-row")).to_have_count(1)
    expect(finish_reason(page)).to_have_text("length")


def test_wrong_seed_is_one_message_with_the_value(chat: Any):
    _, page = chat
    page.fill("#wb-seed input, #wb-seed textarea", "abc")
    ask(page, "hello")
    expect(page.locator(".wb-note-error")).to_contain_text("seed='abc'")
    expect(page.locator("#wb-send")).to_be_enabled()


HOSTILE = (
    '<img src="http://evil.example/x.png" onerror="document.title=1"><script>document.title=2</script>'
    "\n\n**b** <b>c</b>"
)


def test_text_of_the_visitor_is_shown_as_it_stands(chat: Any):
    _, page = chat
    ask(page, HOSTILE, max_tokens=4)
    body = page.locator(".user-row .wb-body")
    expect(body).to_contain_text('<img src="http://evil.example/x.png"')
    expect(body).to_contain_text("**b** <b>c</b>")
    assert page.locator("#wb-chatbot img, #wb-chatbot script").count() == 0


def test_text_of_the_model_cannot_become_markup_or_fetch(open_page: Open, serve: Any):
    from fastapi import FastAPI
    from gradio import mount_gradio_app

    from workbench.ui.app_ui import build_ui, page_options

    service: Any = ScriptedService()
    item = preset("scripted")
    server = serve(mount_gradio_app(FastAPI(), build_ui(service, {"default": item}, "default"), "/", **page_options()))
    watched = open_page()
    watched.expects_a_lost_server = True
    page = watched.page
    page.goto(server.url)
    ask(page, "hello")
    wait_until(lambda: "r1" in service.listeners)
    forged = '</div><div class="wb-foot"><span>forged</span></div>'
    service.token("r1", f"{HOSTILE}\n\n![i](http://evil.example/y.png)\n\n{forged}", 1)
    service.finish("r1", FinishReason.STOP)
    expect(finish_reason(page)).to_have_text("stop")
    assert page.locator("#wb-chatbot img, #wb-chatbot script").count() == 0
    assert page.locator(".wb-foot").count() == 1
    assert page.locator(".bot-row .wb-body strong").inner_text() == "b"
    assert page.title() == "Inference Workbench"


# ------------------------------------------------------------------------ background load


def test_background_requests_run_and_finish(chat: Any):
    service, page = chat
    before = service.recorder.latest
    page.click("#wb-background")
    expect(page.locator("#wb-background-note")).to_contain_text("Added r")
    wait_until(lambda: service.num_open_requests == 0)
    ended = [
        state.finish_reason
        for record in service.recorder.since(before.step_id if before else -1)
        for state in record.requests
        if state.finish_reason is not None
    ]
    assert len(ended) == 8
    assert set(ended) <= {FinishReason.STOP, FinishReason.LENGTH}
    assert active_blocks(service) == 0


def test_background_button_cannot_flood_the_queue(chat: Any):
    service, page = chat
    service.pause()
    try:
        for clicks in range(1, 9):
            page.click("#wb-background")
            wait_until(lambda clicks=clicks: service.num_open_requests == 8 * clicks)  # type: ignore[misc]
        page.click("#wb-background")
        expect(page.locator("#wb-background-note .wb-note-error")).to_contain_text("at most 64")
        assert service.num_open_requests == 64
        for request_id in list(service._listeners):  # they need not run here: another test sees to that
            service.abort(request_id)
    finally:
        service.resume()
    wait_until(lambda: service.num_open_requests == 0)


# ------------------------------------------------------------------------------- settings


def test_live_setting_is_applied_without_a_reload(chat: Any):
    service, page = chat
    epoch = service.status.epoch
    expect(page.locator("#wb-apply")).to_be_disabled()
    page.fill("#wb-max-num-batched-tokens input", "128")
    expect(page.locator("#wb-apply")).to_have_text("Apply (1 change, live)")
    page.click("#wb-apply")
    wait_until(lambda: service.config.max_num_batched_tokens == 128)
    expect(page.locator("#wb-apply")).to_have_text("Apply (no changes)")
    assert service.status.epoch == epoch


def test_reload_takes_over_the_block_size_and_keeps_the_conversation(chat: Any):
    service, page = chat
    epoch = service.status.epoch
    ask(page, "hello", max_tokens=4)
    expect(finish_reason(page)).to_have_text("length")
    page.locator("#wb-block-size label", has_text="32").click()
    expect(page.locator("#wb-apply")).to_have_text("Apply (1 change, reload)")
    expect(page.locator("#wb-apply-note")).to_contain_text("no request is under way")
    page.click("#wb-apply")
    wait_until(lambda: service.status.block_size == 32 and service.status.epoch != epoch)
    expect(page.locator(".user-row")).to_have_count(1)
    ask(page, "again", max_tokens=4)
    expect(page.locator(".bot-row")).to_have_count(2)
    expect(finish_reason(page)).to_have_text("length")


def test_wrong_engine_setting_is_refused_and_the_engine_goes_on(chat: Any):
    service, page = chat
    page.fill("#wb-num-blocks input", "0")
    page.click("#wb-apply")
    expect(page.locator("#wb-apply-note .wb-note-error")).to_contain_text("num_blocks=0")
    ask(page, "hello", max_tokens=4)
    expect(finish_reason(page)).to_have_text("length")
    assert service.config.num_blocks == NUM_BLOCKS


def test_preset_fills_in_the_settings_and_waits_for_apply(chat: Any):
    service, page = chat
    page.click("#wb-preset input")
    page.get_by_role("option", name="Small").click()
    expect(page.locator("#wb-num-blocks input")).to_have_value("300")
    expect(page.locator("#wb-apply")).to_contain_text("reload")
    assert service.config.num_blocks == NUM_BLOCKS


def test_preset_is_chosen_with_the_keyboard(chat: Any):
    _, page = chat
    page.locator("#wb-preset input").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#wb-num-blocks input")).to_have_value("300")


def test_preset_that_is_chosen_already_can_be_brought_back(chat: Any):
    _, page = chat
    page.fill("#wb-num-blocks input", "500")
    expect(page.locator("#wb-apply")).to_have_text("Apply (1 change, reload)")
    page.click("#wb-preset input")
    page.get_by_role("option", name="Default").click()
    expect(page.locator("#wb-num-blocks input")).to_have_value(str(NUM_BLOCKS))


def test_passing_the_preset_with_the_keyboard_changes_nothing(chat: Any):
    _, page = chat
    page.fill("#wb-num-blocks input", "500")
    expect(page.locator("#wb-apply")).to_have_text("Apply (1 change, reload)")
    page.fill("#wb-max-tokens input", "9")
    expect(page.locator("#wb-max-tokens input")).to_have_value("9")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.method == "POST" else None)
    page.locator("#wb-preset input").focus()
    page.keyboard.press("Tab")
    page.fill("#wb-max-num-seqs input", "3")
    expect(page.locator("#wb-apply")).to_have_text("Apply (2 changes, reload)")
    assert len(asked) == 1, "the changes were counted again, and nothing else was asked for"
    expect(page.locator("#wb-num-blocks input")).to_have_value("500")
    expect(page.locator("#wb-max-tokens input")).to_have_value("9")


# ----------------------------------------------------------------------------- appearance


def canvas_colour(page: Page) -> Any:
    return page.evaluate("getComputedStyle(document.body).getPropertyValue('--wb-canvas').trim()")


@pytest.mark.parametrize(
    ("scheme", "first", "other"), [("dark", "#12161b", "#ffffff"), ("light", "#ffffff", "#12161b")]
)
def test_theme_follows_the_system_and_the_button_and_is_kept(
    tiny: Any, open_page: Open, scheme: str, first: str, other: str
):
    _, server = tiny
    page = visit(open_page, server, color_scheme=scheme)
    page.wait_for_function(f"getComputedStyle(document.body).getPropertyValue('--wb-canvas').trim() === '{first}'")
    page.click("#wb-theme")
    assert canvas_colour(page) == other
    page.reload()
    expect(page.locator("#wb-message textarea")).to_be_visible()
    page.wait_for_function(f"getComputedStyle(document.body).getPropertyValue('--wb-canvas').trim() === '{other}'")


@pytest.mark.parametrize("width", [1440, 1280, 390])
def test_page_fits_its_width(tiny: Any, open_page: Open, width: int):
    _, server = tiny
    page = visit(open_page, server, width=width)
    page.wait_for_function(
        f"document.querySelector('.sidebar').classList.contains('open') === {str(width > 900).lower()}"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#wb-send").is_visible()


def test_sidebar_lies_over_a_narrow_page_and_closes_with_escape(tiny: Any, open_page: Open):
    _, server = tiny
    page = visit(open_page, server, width=390)
    page.wait_for_function("!document.querySelector('.sidebar.open')")
    page.click(".sidebar .toggle-button")
    page.wait_for_function("document.querySelector('.sidebar.open')")
    expect(page.locator("#wb-seed")).to_be_in_viewport()
    page.keyboard.press("Escape")
    page.wait_for_function("!document.querySelector('.sidebar.open')")


# ----------------------------------------------------------------------- life of the engine


def test_page_says_why_a_model_could_not_be_loaded(open_page: Open, tmp_path: Path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    service = EngineService(EngineConfig(model=str(broken), num_blocks=8))
    item = preset(str(broken))
    server = RunningServer(build_app(service, {"default": item}, item, show_text=True))
    service.start()
    try:
        page = visit(open_page, server)
        expect(page.locator("#wb-header [data-part=error]")).to_contain_text("broken.gguf")
        ask(page, "hello")
        expect(page.locator(".wb-note-error")).to_have_count(1)
    finally:
        page.close()
        server.stop()
        service.shutdown()


@pytest.mark.model
def test_default_model_answers_sensibly(open_page: Open):
    with running(preset(EngineConfig().model)) as (service, server):
        page = visit(open_page, server)
        service.wait_ready(LOADING_S)
        ask(page, "What is the capital of France? Answer in one short sentence.", max_tokens=24)
        expect(finish_reason(page)).to_have_text(re.compile("stop|length"))
        expect(page.locator(".bot-row .wb-body")).to_contain_text("Paris")
        page.close()
        wait_until(lambda: service.num_open_requests == 0)
