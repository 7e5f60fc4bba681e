"""The prefix cache in the page: a conversation finds its history, the map shows cached blocks, the switch is live."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_chat import wait_until
from tests.browser.test_chat_more import ask_and_wait, bench, chat  # noqa: F401  (fixtures)
from workbench.engine.service import EngineService
from workbench.telemetry.records import BlockStatus

pytestmark = pytest.mark.browser

LONG = "Tell me about block tables, and about what an allocator does when it has nothing left to give away. " * 3


def test_second_turn_finds_the_first_in_the_cache_and_says_so(chat: tuple[EngineService, Page]):  # noqa: F811
    service, page = chat
    ask_and_wait(page, LONG, answers=1)
    kept = [b.block_id for b in service.pool_snapshot().blocks if b.status is BlockStatus.CACHED]
    assert kept

    ask_and_wait(page, "And then?", answers=2)

    text = page.locator(".wb-foot").last.inner_text()
    found = re.search(r"\((\d+) cached\)", text)
    assert found and int(found[1]) >= 16 * len(kept) // 2, text


def test_prefix_cache_is_switched_off_and_on_without_a_reload(chat: tuple[EngineService, Page]):  # noqa: F811
    service, page = chat
    epoch = service.status.epoch
    page.uncheck("#wb-enable-prefix-caching input")
    expect(page.locator("#wb-apply")).to_have_text("Apply (1 change, live)")
    page.click("#wb-apply")
    wait_until(lambda: not service.config.enable_prefix_caching)

    ask_and_wait(page, LONG, answers=1)
    ask_and_wait(page, "And then?", answers=2)
    expect(page.locator(".wb-foot").last).not_to_contain_text("cached")

    page.check("#wb-enable-prefix-caching input")
    page.click("#wb-apply")
    wait_until(lambda: service.config.enable_prefix_caching)
    assert service.status.epoch == epoch
