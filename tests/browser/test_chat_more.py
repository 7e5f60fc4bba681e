"""More of the page over a real engine: editing, taking a conversation away, settings that last, presets, errors.

The engine is short of memory on purpose: 64 blocks of 16 tokens, and a context of 512 tokens.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app import build_app
from tests.browser.chat_page import LOADING_S, Open, active_blocks, ask, finish_reason, preset, visit, wait_until
from tests.browser.map_page import NO_SOCKET
from tests.browser.running_server import RunningServer
from tests.models.tiny_gguf import write_tiny_gguf
from workbench.engine.service import EngineService
from workbench.engine.worker import Pause
from workbench.telemetry.records import RequestState, RequestStatus, StepRecord

pytestmark = pytest.mark.browser

Bench = tuple[EngineService, RunningServer, Path]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A small engine, its page, and the folder that presets are saved to."""
    folder = tmp_path_factory.mktemp("presets")
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path, max_model_len=512)
    item = preset(str(path), num_blocks=64, block_size=16)
    service = EngineService(item.engine_config())
    server = RunningServer(build_app(service, {"default": item}, item, show_text=True, save_to=folder))
    service.start()
    try:
        service.wait_ready(LOADING_S)
        yield service, server, folder
    finally:
        server.stop()
        service.shutdown()


@pytest.fixture
def chat(bench: Bench, open_page: Open) -> Iterator[tuple[EngineService, Page]]:
    """A fresh page; at the end nothing may be left in the engine."""
    service, server, _ = bench
    yield service, visit(open_page, server)
    wait_until(lambda: service.num_open_requests == 0)
    assert active_blocks(service) == 0


def ask_and_wait(page: Page, text: str, answers: int, max_tokens: int = 4) -> None:
    ask(page, text, max_tokens=max_tokens)
    expect(page.locator(".wb-foot")).to_have_count(answers)
    expect(page.locator("#wb-send")).to_be_enabled()
    expect(finish_reason(page)).to_have_text("length")


def open_advanced(page: Page) -> None:
    """Open the advanced settings and wait for the last of them: what is typed while they come may be lost."""
    page.click("#wb-advanced > button")
    expect(page.locator("#wb-logit-bias textarea")).to_be_visible()
    expect(page.locator("#wb-ignore-eos input")).to_be_visible()


def answer_with_stars(page: Page) -> None:
    """Let the model say nothing but `*`: text that Markdown would turn into something else."""
    open_advanced(page)
    page.fill("#wb-logit-bias textarea", "*: 100")


# ----------------------------------------------------------------------- edit and resend


def test_edited_message_cuts_the_conversation_and_is_answered_again(chat: Any):
    _, page = chat
    ask_and_wait(page, "first", 1)
    ask_and_wait(page, "second", 2)
    page.locator(".wb-act-edit").first.click()
    expect(page.locator("#wb-message textarea")).to_have_value("first")
    expect(page.locator("#wb-message textarea")).to_be_focused()
    expect(page.locator("#wb-edit-note")).to_have_text(
        "Editing: Send replaces this message and the 3 messages after it."
    )
    ask_and_wait(page, "other", 1)
    expect(page.locator(".user-row .wb-body")).to_have_text(["other"])
    expect(page.locator("#wb-edit-note")).to_be_hidden()
    ask_and_wait(page, "more", 2)
    expect(page.locator(".user-row .wb-body")).to_have_text(["other", "more"])


def test_cancelled_edit_leaves_the_conversation_as_it_is(chat: Any):
    _, page = chat
    ask_and_wait(page, "first", 1)
    page.locator(".wb-act-edit").first.click()
    expect(page.locator("#wb-message textarea")).to_have_value("first")
    page.click("#wb-edit-cancel")
    expect(page.locator("#wb-message textarea")).to_have_value("")
    expect(page.locator("#wb-edit-note")).to_be_hidden()
    ask_and_wait(page, "second", 2)
    expect(page.locator(".user-row .wb-body")).to_have_text(["first", "second"])


# --------------------------------------------------------------------- copying and saving

NOT_TRUSTED = "Object.defineProperty(window, 'isSecureContext', { get: () => false });"


@pytest.mark.parametrize("init_script", [None, NOT_TRUSTED], ids=["clipboard", "without the clipboard API"])
def test_copy_gives_the_text_of_the_model_and_not_our_markup(bench: Any, open_page: Open, init_script: str | None):
    _, server, _ = bench
    page = visit(open_page, server, init_script=init_script, permissions=["clipboard-read", "clipboard-write"])
    answer_with_stars(page)
    ask_and_wait(page, "hello <b>", 1, max_tokens=8)
    page.locator(".bot-row .wb-act-copy").click()
    expect(page.locator(".bot-row .wb-act-copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "*" * 8
    page.locator(".user-row .wb-act-copy").click()
    expect(page.locator(".user-row .wb-act-copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "hello <b>"
    page.click("#wb-chat-tools [data-part=copy]")
    expect(page.locator("#wb-chat-tools [data-part=said]")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()").startswith(
        "## You\n\nhello <b>\n\n## tiny\n\n********\n\n*TTFT"
    )


def test_conversation_is_saved_as_json_and_markdown_without_asking_the_server(chat: Any, tmp_path: Path):
    _, page = chat
    expect(page.locator("#wb-chat-tools [data-part=saveJson]")).to_be_disabled()
    page.fill("#wb-system-prompt textarea", "be brief")
    answer_with_stars(page)
    ask_and_wait(page, "hello", 1, max_tokens=8)
    page.context.set_offline(True)
    document = json.loads(download(page, "saveJson", tmp_path / "a.json", ".json"))
    question, answer = document["messages"]
    assert question == {"role": "user", "content": "hello"}
    assert (answer["content"], answer["system_prompt"]) == ("*" * 8, "be brief")
    assert (answer["sampling"]["max_tokens"], answer["sampling"]["temperature"]) == (8, 0)
    assert list(answer["sampling"]["logit_bias"].values()) == [100]
    assert (answer["metrics"]["num_output_tokens"], answer["metrics"]["finish_reason"]) == (8, "length")
    assert (document["engine"]["num_blocks"], document["engine"]["block_size"]) == (64, 16)
    assert "## tiny\n\n********\n" in download(page, "saveMarkdown", tmp_path / "a.md", ".md")
    page.context.set_offline(False)


def download(page: Page, part: str, path: Path, extension: str) -> str:
    with page.expect_download() as started:
        page.click(f"#wb-chat-tools [data-part={part}]")
    assert started.value.suggested_filename.startswith("conversation-")
    assert started.value.suggested_filename.endswith(extension)
    started.value.save_as(path)
    return path.read_text(encoding="utf-8")


# -------------------------------------------------------------------------- full context


def test_answer_that_fills_the_context_says_so_and_older_turns_can_be_dropped(chat: Any):
    _, page = chat
    open_advanced(page)
    page.locator("#wb-ignore-eos input").check()
    ask_and_wait(page, "a" * 200, 1)
    expect(page.locator("#wb-context-note")).to_be_hidden()
    page.fill("#wb-max-tokens input", "")
    ask(page, "b" * 200)
    note = page.locator("#wb-context-note")
    expect(note).to_contain_text("The context is full: the answer ended at 512 of 512 tokens. Drop the oldest turns")
    page.fill("#wb-max-tokens input", "4")
    page.click("#wb-drop-oldest")
    expect(page.locator(".user-row .wb-body")).to_have_text(["b" * 200])
    expect(page.locator(".wb-foot")).to_contain_text("4 out")
    expect(note).to_be_hidden()


# ------------------------------------------------------------------------------ settings


def test_logit_bias_reaches_the_engine_and_a_wrong_line_is_one_message(chat: Any):
    _, page = chat
    open_advanced(page)
    page.fill("#wb-logit-bias textarea", "A: 100")
    ask_and_wait(page, "hello", 1, max_tokens=6)
    expect(page.locator(".bot-row .wb-body")).to_have_text("AAAAAA")
    page.fill("#wb-bad-words textarea", "A")
    ask_and_wait(page, "hello", 2, max_tokens=6)
    expect(page.locator(".bot-row .wb-body").last).not_to_contain_text("A")
    page.fill("#wb-logit-bias textarea", "A is good")
    ask(page, "hello")
    expect(page.locator(".wb-note-error")).to_have_text(
        "logit_bias: the line 'A is good' is not understood: write a token, a colon and a number"
    )
    expect(page.locator("#wb-send")).to_be_enabled()


LONG_PROMPT = "Answer in one short sentence. " * 20


def test_sampling_settings_outlive_a_reload_and_are_the_visitors_own(bench: Any, open_page: Open):
    _, server, _ = bench
    page = visit(open_page, server)
    open_advanced(page)
    page.fill("#wb-min-p input[type=number]", "0.25")
    page.fill("#wb-num-blocks input", "77")
    page.fill("#wb-stop-texts textarea", "###")
    page.fill("#wb-bad-words textarea", "one\ntwo words")
    page.locator("#wb-ignore-eos input").check()
    page.fill("#wb-system-prompt textarea", LONG_PROMPT)
    page.wait_for_function("localStorage.getItem('wb-sampling')?.length > 800")  # encrypted, so only its length tells
    expect(page.locator("#wb-num-blocks input")).to_have_value("77")  # what is kept does not disturb what is typed
    page.reload()
    open_advanced(page)
    expect(page.locator("#wb-min-p input[type=number]")).to_have_value("0.25")
    expect(page.locator("#wb-stop-texts textarea")).to_have_value("###")
    expect(page.locator("#wb-bad-words textarea")).to_have_value("one\ntwo words")
    expect(page.locator("#wb-ignore-eos input")).to_be_checked()
    expect(page.locator("#wb-num-blocks input")).to_have_value("64")
    expect(page.locator("#wb-system-prompt textarea")).to_have_value(LONG_PROMPT)
    other = visit(open_page, server)
    assert other.input_value("#wb-stop-texts textarea") == ""


def test_settings_are_saved_as_a_preset_that_every_visitor_finds(bench: Any, open_page: Open):
    _, server, folder = bench
    page = visit(open_page, server)
    page.fill("#wb-stop-texts textarea", "###")
    page.fill("#wb-num-blocks input", "48")
    page.get_by_role("button", name="Save as preset").click()
    page.fill("#wb-preset-name input, #wb-preset-name textarea", "default")
    page.click("#wb-preset-save")
    expect(page.locator("#wb-preset-said")).to_have_text(
        "preset name 'default' belongs to a built-in preset: choose another one"
    )
    page.fill("#wb-preset-name input, #wb-preset-name textarea", "mine")
    page.fill("#wb-preset-title input, #wb-preset-title textarea", "My own")
    page.click("#wb-preset-save")
    expect(page.locator("#wb-preset-said")).to_have_text("Saved as presets/mine.toml.")
    expect(page.locator("#wb-preset input")).to_have_value("My own")
    written = tomllib.loads((folder / "mine.toml").read_text(encoding="utf-8"))
    assert (written["title"], written["engine"]["num_blocks"], written["sampling"]["stop"]) == ("My own", 48, ["###"])
    other = visit(open_page, server)
    other.click("#wb-preset input")
    other.get_by_role("option", name="My own").click()
    expect(other.locator("#wb-num-blocks input")).to_have_value("48")
    expect(other.locator("#wb-stop-texts textarea")).to_have_value("###")


# ------------------------------------------------------------------------- the live views


def test_chat_is_followed_by_polling_where_sockets_do_not_exist(bench: Any, open_page: Open):
    service, server, _ = bench
    page = visit(open_page, server, init_script=NO_SOCKET)
    phase = page.locator("#wb-compact-map .wb-phase .wb-on")
    with held_when(service, lambda newest: newest.num_output_tokens > 0):
        ask(page, "hello", max_tokens=20)
        expect(phase).to_have_text("decode 1")
        expect(page.locator("#wb-status-line")).to_contain_text("Feed: polling")
        blocks = f"{active_blocks(service)} of 64 blocks active"
        expect(page.locator("#wb-compact-map canvas")).to_have_attribute("aria-label", f"Block pool: {blocks}")
    expect(phase).to_have_text("done")
    expect(finish_reason(page)).to_have_text("length")


def test_preemption_is_seen_in_the_answer_and_in_the_block_map(chat: Any):
    service, page = chat
    service.pause()
    page.click("#wb-background")
    wait_until(lambda: service.num_open_requests == 8)
    ask(page, "hello", max_tokens=120)  # the last to come, so the first to make room
    wait_until(lambda: service.num_open_requests == 9)
    with held_when(service, lambda newest: newest.status is RequestStatus.PREEMPTED):
        service.resume()
        expect(page.locator("#wb-compact-map .wb-phase .wb-on")).to_have_text("preempted")
        expect(page.locator(".bot-row")).to_contain_text("preempted")
        page.get_by_role("tab", name="Blocks").click()
        page.locator("#wb-block-map .wb-chip", has_text="you").first.click()
        expect(page.locator("#wb-block-map [data-part=requestRows]")).to_contain_text("once")
        page.get_by_role("tab", name="Chat").click()
    expect(finish_reason(page)).to_have_text("length")
    expect(page.locator(".wb-foot")).to_contain_text("preempted")


@contextmanager
def held_when(service: EngineService, is_so: Callable[[RequestState], bool]) -> Iterator[None]:
    """Hold the engine right after the first step after which the newest request is so; release it at the end."""
    holding: list[Pause] = []

    def look(record: StepRecord) -> None:  # in the engine thread, which must not wait for itself
        newest = max(record.requests, key=lambda state: int(state.request_id[1:].partition(".")[0]), default=None)
        if newest is not None and not holding and is_so(newest):
            holding.append(Pause(True, Future()))
            service._put(holding[0])

    forget = service.subscribe(look)
    try:
        yield
        assert holding, "the engine was never held"
    finally:
        forget()
        service.resume()


def test_narrow_page_keeps_the_settings_button_clear_of_text(bench: Any, open_page: Open):
    _, server, _ = bench
    page = visit(open_page, server, width=390)
    page.wait_for_function("!document.querySelector('.sidebar.open')")
    beside = """() => { const box = document.querySelector('.sidebar .toggle-button').getBoundingClientRect();
      return [box.top, box.bottom - 1].map(y => document.elementFromPoint(box.right + 8, y).tagName); }"""
    below = "document.querySelector('.wb-strip').getBoundingClientRect().top"
    assert page.evaluate(below) >= page.evaluate(
        "document.querySelector('.sidebar .toggle-button').getBoundingClientRect().bottom"
    )
    page.evaluate("window.scrollTo(0, 200)")
    assert page.evaluate(below) < 0
    assert page.evaluate(beside) == ["MAIN", "MAIN"]  # the bar, not what is scrolled away under it
    assert page.evaluate("document.querySelector('.wb-two').children[1].getBoundingClientRect().width") > 300


def test_crash_is_told_with_its_traceback_until_the_visitor_dismisses_it(bench: Any, open_page: Open):
    service, server, _ = bench
    page, other = visit(open_page, server), visit(open_page, server)
    service.pause()
    ask(page, "hello")
    wait_until(lambda: service.num_open_requests == 1)
    service._call(break_next_step)
    service.resume()
    banner = page.locator("#wb-header [data-part=error]")
    expect(banner).to_contain_text("Unexpected ZeroDivisionError: a broken kernel")
    banner.locator("summary").click()
    expect(banner.locator("pre")).to_contain_text("Traceback (most recent call last)")
    expect(page.locator(".bot-row .wb-note-error")).to_have_text("a broken kernel")
    ask_and_wait(page, "again", 1)
    banner.get_by_role("button", name="Dismiss").click()
    expect(banner).to_be_hidden()
    page.reload()
    expect(page.locator("#wb-header [data-part=feed]")).to_have_text("live")
    expect(banner).to_be_hidden()
    expect(other.locator("#wb-header [data-part=error]")).to_be_visible()


def break_next_step(core: Any) -> None:
    """Let the next step raise, and those after it work again."""
    real = core.runner.execute

    def broken(*arguments: Any) -> None:
        core.runner.execute = real
        raise ZeroDivisionError("a broken kernel")

    core.runner.execute = broken


LONG = "Tell me about block tables, and about what an allocator does when it has nothing left to give away. " * 3


def test_second_turn_finds_the_first_in_the_cache_and_says_so(chat: tuple[EngineService, Page]):
    _, page = chat
    ask_and_wait(page, LONG, answers=1)
    first = page.locator(".wb-foot").last.inner_text()
    counts = re.search(r"prompt (\d+).*?(\d+) out", first, re.DOTALL)
    assert counts, first
    length_of_first = int(counts[1]) + int(counts[2])

    ask_and_wait(page, "And then?", answers=2)

    text = page.locator(".wb-foot").last.inner_text()
    found = re.search(r"\((\d+) cached\b", text)
    assert found, text
    # Full blocks of 16, except that a decoder may fuse the answer's last tokens with what follows.
    assert length_of_first - 32 <= int(found[1]) <= length_of_first, (first, text)


def test_prefix_cache_is_switched_off_and_on_without_a_reload(chat: tuple[EngineService, Page]):
    service, page = chat
    epoch = service.status.epoch
    page.uncheck("#wb-enable-prefix-caching input")
    expect(page.locator("#wb-apply")).to_have_text("Apply (1 change, live)")
    page.click("#wb-apply")
    wait_until(lambda: not service.config.enable_prefix_caching)

    ask_and_wait(page, LONG, answers=1)
    ask_and_wait(page, "And then?", answers=2)
    expect(page.locator(".wb-foot").last).not_to_contain_text("cached")
    expect(page.locator(".wb-foot").last).to_contain_text("(prefix cache off)")

    page.check("#wb-enable-prefix-caching input")
    page.click("#wb-apply")
    wait_until(lambda: service.config.enable_prefix_caching)
    assert service.status.epoch == epoch
