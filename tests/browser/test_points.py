"""The whole page of every point that has to be shown in a real browser, as far as no other file shows it.

1. Pixels equal the pool over both transports: `test_block_map`. 2. Frames and main thread: `tests/bench/test_page.py`.
3. Stop below 40 messages: here; measured by the bench. 4. A closed tab frees its blocks: `test_chat`; measured by the
bench. 5. Five tabs: here and in `test_chat`. 6. A hidden tab, 7. a restarted server: `test_live_feed`. 8. Two people:
`test_chat`, and both seen in one map here. 9. Nothing off-host and no console error: `open_page` asserts it of every
test; a tour of all tabs is here. 10. Themes, languages, widths, keyboard: here, of the whole page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import (
    LOADING_S,
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
from tests.browser.conftest import WatchedPage
from tests.browser.running_server import RunningServer
from tests.models.tiny_gguf import write_tiny_gguf
from workbench.engine.service import EngineService

pytestmark = pytest.mark.browser

TABS = ("chat", "blocks", "timeline")
CONTENT = {
    "chat": "#wb-chatbot",
    "blocks": "#wb-block-map canvas[data-part=map]",
    "timeline": "canvas[data-part=timeline]",
}
"""What a tab is there for."""

Workbench = tuple[EngineService, RunningServer]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path, max_model_len=8192)
    with running(preset(str(path))) as (service, server):
        service.wait_ready(LOADING_S)
        yield service, server


@pytest.fixture(autouse=True)
def nothing_is_left(tiny: Workbench) -> Iterator[None]:
    """Every test leaves the engine without requests and without blocks in use."""
    yield
    service, _ = tiny
    wait_until(lambda: service.num_open_requests == 0)
    wait_until(lambda: active_blocks(service) == 0)


def tab(page: Page, name: str) -> Any:
    return page.locator(f'#wb-tabs button[role="tab"][data-tab-id="{name}"]')


def show(page: Page, name: str) -> None:
    """Open a tab and wait for what it is there for."""
    tab(page, name).first.evaluate("button => button.click()")  # Gradio may keep it in a menu of a narrow page
    expect(page.locator(CONTENT[name])).to_be_visible()


def wait_for_live_step(page: Page, service: EngineService) -> None:
    """Wait until the page has the engine's newest step."""
    assert service.recorder.latest is not None
    page.wait_for_function("step => wb.store.live.stepId >= step", arg=service.recorder.latest.step_id)


# --------------------------------------------------------------------------- 3. a long conversation


def test_stop_below_forty_messages_ends_the_answer(tiny: Workbench, open_page: Open):
    service, server = tiny
    page = visit(open_page, server)
    for number in range(1, 21):
        ask(page, f"message {number}", max_tokens=2)
        expect(page.locator(".bot-row")).to_have_count(number)
        expect(page.locator("#wb-stop")).to_be_disabled()
        expect(page.locator("#wb-send")).to_be_enabled()
    ask(page, "the last one", max_tokens=6000)
    wait_for_text(page)
    page.click("#wb-stop")
    expect(finish_reason(page)).to_have_text("abort")
    expect(page.locator(".user-row, .bot-row")).to_have_count(42)
    wait_until(lambda: service.num_open_requests == 0)


# --------------------------------------------------------------------- 5. and 8. many look at once


def test_five_tabs_of_one_browser_all_show_the_same_engine_and_obey(tiny: Workbench, open_page: Open):
    service, server = tiny
    pages = [visit(open_page, server)]
    for _ in range(4):
        page = pages[0].context.new_page()
        page.goto(server.url)
        expect(page.locator("#wb-apply")).to_have_text("Apply (no changes)")
        pages.append(page)
    for page in pages[:4]:
        show(page, "blocks")
    ask(pages[4], "hello")
    wait_for_text(pages[4])
    [request_id] = service._listeners
    for page in pages:
        page.wait_for_function("id => wb.store.live.byId.has(id)", arg=request_id)
        assert page.evaluate("wb.feed.transport") == "websocket"
    pages[4].click("#wb-stop")
    expect(finish_reason(pages[4])).to_have_text("abort")
    for page in pages:
        page.wait_for_function("id => !wb.store.live.byId.has(id)", arg=request_id)
    for name in TABS:
        show(pages[0], name)
    for page in pages[1:]:
        page.close()


def test_two_people_see_both_requests_and_each_lights_ones_own(tiny: Workbench, open_page: Open):
    service, server = tiny
    pages = [visit(open_page, server), visit(open_page, server)]
    for page in pages:
        ask(page, "hello")
        wait_for_text(page)
    assert len(service._listeners) == 2
    for page in pages:
        page.wait_for_function("ids => ids.every(id => wb.store.live.byId.has(id))", arg=list(service._listeners))
    own = [page.evaluate("[...wb.store.mine]") for page in pages]
    assert sorted(own[0] + own[1]) == sorted(service._listeners)
    for page in pages:
        page.click("#wb-stop")
        expect(finish_reason(page)).to_have_text("abort")


# --------------------------------------------------------- 9. and 10. the whole page, as it may be looked at

CUT_OFF = """() => {
  // For screen readers, for Gradio's measuring, and what lies beside the page until it is opened.
  const HIDDEN = '.wb-sr, .sr-only, .visually-hidden, .sidebar:not(.open), script, style, option';
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    const isShown = parent.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    if (!isShown || !node.nodeValue.trim() || parent.closest(HIDDEN)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (!box.width || !isCut(parent, box)) continue;
      found.push(`${node.nodeValue.trim().slice(0, 40)} in ${describe(parent)}`);
      break;
    }
  }
  return found;

  function isCut(element, box) {
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at), frame = at.getBoundingClientRect();
      if (style.display === 'inline' || style.display === 'contents') continue;
      if (style.textOverflow === 'ellipsis' || /auto|scroll/.test(style.overflowX + style.overflowY)) return false;
      const isWide = box.right > frame.right + 1 || box.left < frame.left - 1;
      const isHigh = box.bottom > frame.bottom + 3 || box.top < frame.top - 3;
      if (isWide && /hidden|clip/.test(style.overflowX)) return true;
      if (isHigh && /hidden|clip/.test(style.overflowY)) return true;
      if (style.position === 'fixed') break;
    }
    return box.right > innerWidth + 1 || box.left < -1;
  }

  function describe(element) {
    const named = element.closest('[data-part], [id]');
    return `${element.tagName.toLowerCase()}.${element.className} of ${named?.dataset?.part || named?.id}`;
  }
}"""
"""Texts that somebody sees only a part of, without a way to scroll to the rest and without an ellipsis."""


def text_that_is_cut_off(page: Page) -> list[str]:
    found: list[str] = page.evaluate(CUT_OFF)
    return found


@pytest.mark.parametrize("width", [1440, 1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_tour_of_all_tabs_fits_its_width_and_cuts_no_text_off(
    tiny: Workbench, open_page: Open, locale: str, theme: str, width: int
):
    service, server = tiny
    watched: WatchedPage = open_page(width=width, locale=locale, color_scheme=theme)
    page = watched.page
    page.goto(server.url)
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN" if locale == "zh-CN" else "en")
    expect(page.locator("#wb-message textarea")).to_be_visible()
    page.wait_for_function("wb.store.service !== null")
    page.locator("#wb-message textarea").fill("hello, who are you?")
    page.locator("#wb-message textarea").press("Enter")
    wait_for_text(page)
    for name in TABS:
        show(page, name)
        wait_for_live_step(page, service)
        assert page.evaluate("document.body.classList.contains('dark')") == (theme == "dark")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert text_that_is_cut_off(page) == [], name
    show(page, "chat")
    page.locator("#wb-stop").click()
    expect(page.locator("#wb-stop")).to_be_disabled()
    assert watched.foreign == []
    assert watched.errors == []


def test_cut_off_text_is_noticed(tiny: Workbench, open_page: Open):
    _, server = tiny
    page = visit(open_page, server)
    assert text_that_is_cut_off(page) == []
    page.evaluate(
        """() => { for (const style of ['overflow: hidden; width: 30px', 'position: absolute; left: 1430px']) {
        const box = document.createElement('div');
        box.textContent = 'much_too_long_a_word';
        box.style = style + '; white-space: nowrap';
        document.querySelector('#wb-header').append(box); } }"""
    )
    assert [found.partition(" ")[0] for found in text_that_is_cut_off(page)] == ["much_too_long_a_word"] * 2


# -------------------------------------------------------------------------------- 10. keyboard only


IS_FOCUSED = "selector => Boolean(document.activeElement.closest(selector))"
SHOWS_FOCUS = """() => {
  const style = getComputedStyle(document.activeElement);
  return style.outlineStyle !== 'none' || style.boxShadow !== 'none';
}"""


def tab_to(page: Page, selector: str, key: str = "Tab", most: int = 80) -> None:
    """Press Tab until `selector` has the focus, and see that one can see it."""
    for _ in range(most):
        page.keyboard.press(key)
        if page.evaluate(IS_FOCUSED, selector):
            assert page.evaluate(SHOWS_FOCUS), f"nothing shows that {selector} has the focus"
            return
    pytest.fail(f"{selector} was not reached with {most} presses of {key}")


def open_by_keyboard(page: Page, name: str, key: str = "Shift+Tab") -> None:
    """Walk to the tab's button, press it, and walk on to what the tab is there for."""
    tab_to(page, f'#wb-tabs button[role="tab"][data-tab-id="{name}"]', key)
    page.keyboard.press("Enter")
    expect(page.locator(CONTENT[name])).to_be_visible()


def test_page_is_worked_with_the_keyboard_alone(tiny: Workbench, open_page: Open):
    _, server = tiny
    page = visit(open_page, server)
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    wait_for_text(page)
    open_by_keyboard(page, "blocks")
    tab_to(page, CONTENT["blocks"])
    page.keyboard.press("ArrowRight")  # onto the first block
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.evaluate("wb.store.selection.block") == 1
    page.keyboard.press("Space")
    page.wait_for_function("wb.store.past !== null")
    page.keyboard.press("f")
    page.wait_for_function("wb.store.cursor === null")
    page.keyboard.press("Escape")
    assert page.evaluate("wb.store.selection.block") == -1
    open_by_keyboard(page, "timeline")
    tab_to(page, CONTENT["timeline"])
    page.keyboard.press(",")
    page.wait_for_function("wb.store.past !== null")
    page.keyboard.press("f")
    page.wait_for_function("wb.store.cursor === null")
    open_by_keyboard(page, "chat")
    tab_to(page, "#wb-stop")
    page.keyboard.press("Enter")
    expect(finish_reason(page)).to_have_text("abort")
