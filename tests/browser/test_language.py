"""The page in English and in Chinese, in a real browser: chosen by the browser at first, then by the visitor."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import Open, wait_until
from tests.browser.running_server import DEADLINE_MS, RunningServer
from workbench.engine.service import EngineService
from workbench.sampling_params import SamplingParams

pytestmark = pytest.mark.browser

NAMES = re.compile(
    r"tiny|Inference Workbench|EN|KV|TTFT|ITL|JSON|PNG|Markdown|WebSocket|Enter|Esc|Shift|Ctrl|Logit|GiB|MiB|KiB|MB|kB"
    r"|ms|p50|p95|python app\.py --replay|chrome://tracing|ui\.perfetto\.dev|\br\d+(?:\.\d+)?\b"
)
"""The same in every language: names, keys, units, and the ids of requests."""
ENGLISH_WORD = re.compile(r"[A-Za-z]{3,}")


def visit(open_page: Open, server: RunningServer, **options: Any) -> Page:
    page: Page = open_page(**options).page
    page.goto(server.url)
    expect(page.locator("#wb-message textarea")).to_be_visible()
    expect(page.locator("#wb-apply")).to_have_text(re.compile(r"no changes|无更改"))
    return page


def end_all(service: EngineService) -> None:
    """Leave the engine idle for the next test."""
    for request_id in list(service._listeners):
        service.abort(request_id)
    wait_until(lambda: service.num_open_requests == 0)


def send(page: Page, text: str) -> None:
    page.fill("#wb-max-tokens input", "8")
    page.fill("#wb-message textarea", text)
    page.click("#wb-send")


def left_in_english(page: Page) -> list[str]:
    """Visible texts, and attributes of ours that are read out, with an English word that is no name."""
    texts: list[str] = page.evaluate(
        """() => {
          const found = [];
          const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          for (let node = walker.nextNode(); node; node = walker.nextNode()) {
            const parent = node.parentElement;
            if (parent.closest('script, style, noscript, [lang=en], #wb-status-line span span')) continue;
            if (parent.closest('.wb-body, [data-part=tokens], #wb-preset, .wb-preset-note')) continue;
            if (parent.closest('[data-part=model], [data-part=backend], [data-part=precision]')) continue;
            if (parent.checkVisibility()) found.push(node.nodeValue.trim());
          }
          for (const name of ['title', 'aria-label', 'placeholder'])
            for (const node of document.querySelectorAll(`.wb [${name}], .wb-msg [${name}], textarea[${name}]`)) {
              const isOurs = node.checkVisibility() && !node.closest('.wb-strip, [lang=en]');
              if (isOurs) found.push(node.getAttribute(name));
            }
          return found;
        }"""
    )
    return sorted({text for text in texts if ENGLISH_WORD.search(NAMES.sub("", text))})


def expect_chinese(page: Page) -> None:
    left = left_in_english(page)
    assert not left, "\n".join(left)


def test_page_follows_the_browsers_language_at_first(tiny: Any, open_page: Open):
    _, server = tiny
    english, chinese = visit(open_page, server, locale="en-US"), visit(open_page, server, locale="zh-CN")
    expect(english.get_by_role("tab", name="Chat")).to_be_visible()
    expect(english.locator("html")).to_have_attribute("lang", "en")
    expect(chinese.get_by_role("tab", name="对话")).to_be_visible()
    expect(chinese.locator("html")).to_have_attribute("lang", "zh-CN")
    expect(chinese.locator("#wb-apply")).to_have_text("应用（无更改）")


@pytest.mark.parametrize(("locale", "button", "stop"), [("en-US", "中文", "停止"), ("zh-CN", "EN", "Stop")])
def test_switch_changes_everything_keeps_the_conversation_and_is_remembered(
    tiny: Any, open_page: Open, locale: str, button: str, stop: str
):
    service, server = tiny
    page = visit(open_page, server, locale=locale)
    send(page, "hello")
    expect(page.locator("button.wb-foot")).to_have_count(1)
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.locator("#wb-stop")).to_have_text(stop)
    expect(page.locator(".user-row .wb-body")).to_have_text("hello")
    expect(page.locator("button.wb-foot")).to_have_count(1)
    page.reload()
    expect(page.locator("#wb-stop")).to_have_text(stop)
    send(page, "more")
    expect(page.locator(".user-row")).to_have_count(2)
    end_all(service)


def test_page_is_chinese_throughout(tiny: Any, open_page: Open):
    service, server = tiny
    page = visit(open_page, server, locale="zh-CN", first_visit=True)
    page.get_by_text("高级采样").click()
    page.locator("#wb-use-beam-search input").wait_for(timeout=DEADLINE_MS)
    expect_chinese(page)
    page.locator("#wb-guide [data-part=close]").click()
    send(page, "你好")
    expect(page.locator("button.wb-foot")).to_have_text(re.compile("达到长度上限|正常结束"))
    page.locator(".wb-act-tokens").click()
    page.locator(".wb-token").first.hover()
    expect(page.locator("#wb-token-tip")).to_contain_text("词元编号")
    expect_chinese(page)

    service.pause()
    try:
        page.click("#wb-background")
        expect(page.locator("#wb-background-note")).to_contain_text("进行中")
    finally:
        service.resume()
    for tab in ("块", "时间线"):
        page.get_by_role("tab", name=tab, exact=True).click()
        page.wait_for_function("wb.store.live.stepId > 3")
        page.wait_for_timeout(1500)
        expect_chinese(page)
    end_all(service)


def test_reasons_of_the_scheduler_are_told_in_the_visitors_language(tiny: Any, open_page: Open):
    service, server = tiny
    page = visit(open_page, server, locale="zh-CN")
    service.pause()
    for _ in range(20):
        service.submit("x " * 400, SamplingParams(max_tokens=600, ignore_eos=True), lambda _event: None)
    service.resume()
    page.get_by_role("tab", name="块", exact=True).click()
    expect(page.locator("#wb-block-map .wb-queue p").first).to_have_text(re.compile("^(等待|被抢占|部分计算)："))
    end_all(service)
