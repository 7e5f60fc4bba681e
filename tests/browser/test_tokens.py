"""An answer shown as its tokens, in a real browser over a real engine; ids and blocks are read from the engine."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import ask, finish_reason, wait_until
from workbench.engine.service import EngineService

pytestmark = pytest.mark.browser

NUM_TOKENS = 40


def tables_of_newest(service: EngineService) -> dict[int, int]:
    """Place in the context → block of the newest request, as its last step but one left them."""
    records = service.recorder.since(-1)
    newest = max((r.request_id for r in records[-1].requests), key=lambda name: int(name[1:]))
    return {
        block.logical_index: block.block_id
        for record in records
        for block in record.block_changes
        if newest in block.request_ids
    }


def facts(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.locator(".wb-token").evaluate_all("nodes => nodes.map(wb.tokenFacts)")
    return found


def test_answer_is_shown_as_the_engines_own_tokens_in_the_blocks_that_hold_them(chat: Any):
    service, page = chat
    ask(page, "hello", max_tokens=NUM_TOKENS)
    expect(finish_reason(page)).to_have_text("length")
    page.get_by_role("button", name="Tokens").click()
    expect(page.locator(".wb-token")).to_have_count(NUM_TOKENS)

    shown = facts(page)
    prompt = len(service.tokenizer.encode_chat([{"role": "user", "content": "hello"}]))
    table, block_size = tables_of_newest(service), service.status.block_size
    assert [each["position"] for each in shown] == list(range(prompt, prompt + NUM_TOKENS))
    for each in shown[:-1]:
        position = each["position"]
        assert each["blocks"] == [table[position // block_size]]
        assert each["slot"] == position % block_size
    assert shown[-1]["blocks"] == []  # it was never computed
    assert {each["source"] for each in shown} == {"target"}
    texts = page.locator(".wb-token").evaluate_all("nodes => nodes.map(n => n.textContent)")
    decoded = [service.tokenizer.decode([each["id"]], skip_special_tokens=False) for each in shown]
    assert [text.replace("↵\n", "\n") for text in texts] == decoded


def test_token_tells_about_itself_on_hover_and_by_the_arrow_keys(chat: Any):
    _, page = chat
    page.get_by_text("Advanced sampling").click()
    page.locator("#wb-logprobs input").check()
    ask(page, "hello", max_tokens=8)
    expect(finish_reason(page)).to_have_text("length")
    page.get_by_role("button", name="Tokens").click()
    tip = page.locator("#wb-token-tip")
    page.locator(".wb-token").nth(2).hover()
    first = facts(page)[2]
    for words in (str(first["id"]), str(first["position"]), f"{first['blocks'][0]} / {first['slot']}", "target"):
        expect(tip).to_contain_text(words)
    expect(tip).to_contain_text(f"{first['logprob']:.3f}".replace("-", "−"))
    assert first["logprob"] <= 0
    assert first["rank"] == 1  # greedy
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()

    page.locator(".wb-tokens").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".wb-token").nth(1)).to_have_class("wb-token wb-from-target wb-on")
    expect(tip).to_contain_text(str(facts(page)[1]["position"]))
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_switch_is_kept_with_its_answer_and_leaves_the_text_alone(chat: Any):
    _, page = chat
    ask(page, "hello", max_tokens=8)
    expect(finish_reason(page)).to_have_text("length")
    switch = page.get_by_role("button", name="Tokens")
    switch.click()
    expect(page.locator(".wb-token")).to_have_count(8)
    ask(page, "again", max_tokens=8)
    expect(page.locator(".wb-foot")).to_have_count(2)
    expect(finish_reason(page)).to_have_text("length")
    expect(page.locator(".wb-token")).to_have_count(8)
    expect(page.locator(".wb-tokens")).to_have_count(1)
    page.get_by_role("button", name="Text", exact=True).click()
    expect(page.locator(".wb-token")).to_have_count(0)
    expect(switch).to_have_count(2)
    expect(page.locator(".wb-foot")).to_have_count(2)


def test_figures_of_an_answer_lead_to_its_row_in_the_timeline_at_its_last_step(chat: Any):
    service, page = chat
    ask(page, "hello", max_tokens=8)
    expect(finish_reason(page)).to_have_text("length")
    wait_until(lambda: service.num_open_requests == 0)
    last = service.recorder.latest
    assert last is not None
    page.locator("button.wb-foot").click()
    expect(page.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")
    page.wait_for_function(f"wb.store.cursor === {last.step_id}")
    assert page.evaluate("wb.store.selection.request") == last.requests[0].request_id
