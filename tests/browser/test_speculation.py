"""Drafting on the page, in a real browser over a tiny engine with a tiny draft model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import LOADING_S, MANY_TOKENS, ask, finish_reason, preset, running, visit, wait_until
from tests.browser.running_server import RunningServer
from tests.models.tiny_gguf import write_tiny_gguf
from workbench.engine.service import EngineService
from workbench.speculation_params import SpeculationParams
from workbench.ui import active_turns

pytestmark = pytest.mark.browser

PROMPT = "the end and the beginning and the end"
NUM_TOKENS = 60


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineService, RunningServer]]:
    folder = tmp_path_factory.mktemp("models")
    write_tiny_gguf(folder / "tiny.gguf", max_model_len=8192)
    write_tiny_gguf(folder / "draft.gguf", num_layers=1, max_model_len=8192)
    item = preset(str(folder / "tiny.gguf"), draft_model=str(folder / "draft.gguf"))
    item = replace(item, speculation=SpeculationParams(draft_confidence=0.0))  # a random model is never sure
    with running(item) as (service, server):
        service.wait_ready(LOADING_S)
        yield service, server


@pytest.fixture
def shown(
    drafting: tuple[EngineService, RunningServer], open_page: Callable[..., Any]
) -> Iterator[tuple[EngineService, Page]]:
    service, server = drafting
    yield service, visit(open_page, server)
    wait_until(lambda: service.num_open_requests == 0)


def choose(page: Page, group: str, method: str) -> None:
    """Choose a method; once it is known which the engine has."""
    expect(page.locator(f"{group} input[value=eagle]")).to_be_disabled()
    page.locator(f"{group} label:has(input[value={method}])").click()
    expect(page.locator(f"{group} input[value={method}]")).to_be_checked()


def open_tab(page: Page, num_tokens: int = NUM_TOKENS) -> None:
    page.fill("#wb-max-tokens input", str(num_tokens))
    page.locator('#wb-tabs button[data-tab-id="speculation"]').first.evaluate("button => button.click()")
    expect(page.locator("#wb-comparison-run")).to_be_visible()
    page.fill("#wb-comparison-prompt textarea", PROMPT)


def on_the_tab(open_page: Callable[..., Any], server: RunningServer) -> Any:
    """A page of its own, ready for a long comparison; with it comes what the browser reports."""
    watched = open_page()
    watched.page.goto(server.url)
    expect(watched.page.locator("#wb-apply")).to_have_text("Apply (no changes)")
    open_tab(watched.page, 6000)
    return watched


def sources(page: Page, column: str) -> set[str]:
    found: list[str] = page.locator(f"{column} .wb-column-text span").evaluate_all(
        "nodes => nodes.map(n => n.className)"
    )
    return set(found)


def test_methods_that_the_engine_cannot_offer_are_disabled_and_say_why(shown: Any):
    service, page = shown
    for method, reason in service.status.speculation.items():
        choice = page.locator(f"#wb-method input[value={method}]")
        (expect(choice).to_be_disabled if reason else expect(choice).to_be_enabled)()
        if reason:
            expect(page.locator("#wb-speculation-note")).to_contain_text(reason)
    assert service.status.speculation["eagle"]


def test_answer_is_drafted_as_chosen_and_its_tokens_tell_their_source(shown: Any):
    service, page = shown
    choose(page, "#wb-method", "draft_model")
    ask(page, PROMPT, max_tokens=NUM_TOKENS)
    expect(finish_reason(page)).to_have_text("length")
    drafted = [state for record in service.recorder.since(-1) for state in record.requests if state.num_draft_tokens]
    newest = max((state.request_id for state in drafted), key=lambda name: int(name[1:]))
    num_drafted = sum(state.num_draft_tokens for state in drafted if state.request_id == newest)
    num_accepted = sum(state.num_accepted_tokens for state in drafted if state.request_id == newest)
    expect(page.locator(".wb-foot").last).to_contain_text(f"accepted {num_accepted} / {num_drafted}")

    page.get_by_role("button", name="Tokens").click()
    expect(page.locator(".wb-token")).to_have_count(NUM_TOKENS)
    expect(page.locator(".wb-token.wb-from-accepted")).to_have_count(num_accepted)
    expect(page.locator(".wb-token.wb-from-target").first).to_be_visible()


def test_header_tells_the_acceptance_while_drafts_are_verified_and_a_dash_afterwards(shown: Any):
    _, page = shown
    acceptance = page.locator('#wb-header [data-part="acceptance"]')
    choose(page, "#wb-method", "draft_model")
    ask(page, PROMPT, max_tokens=MANY_TOKENS)
    expect(acceptance).to_have_text(re.compile(r"^[01]\.\d\d$"))
    page.click("#wb-stop")
    expect(acceptance).to_have_text("–")


def test_nothing_is_drafted_with_beams_and_the_sidebar_says_so(shown: Any):
    service, page = shown
    choose(page, "#wb-method", "ngram")
    expect(page.locator(".wb-beams-note")).to_be_hidden()
    page.get_by_text("Advanced sampling").click()
    page.locator("#wb-use-beam-search input").check()
    expect(page.locator(".wb-beams-note")).to_be_visible()
    before = service.recorder.latest.step_id if service.recorder.latest else -1
    ask(page, PROMPT, max_tokens=8)
    expect(finish_reason(page)).to_have_text("length")
    assert all(not state.num_draft_tokens for record in service.recorder.since(before) for state in record.requests)


def test_both_run_in_turn_and_are_identical_at_temperature_zero(shown: Any):
    service, page = shown
    open_tab(page)
    choose(page, "#wb-comparison-method", "draft_model")
    expect(page.locator("#wb-chart-positions")).to_contain_text("A run fills this")
    page.click("#wb-comparison-run")
    expect(page.locator(".wb-badge")).to_have_text("identical ✓")
    expect(page.locator("#wb-comparison-verdict")).to_contain_text(re.compile(r"\d\.\d\d× as fast"))
    expect(page.locator("#wb-comparison-verdict")).to_contain_text("One after the other")
    plain = page.locator("#wb-plain-column .wb-column-text").text_content()
    assert plain == page.locator("#wb-drafted-column .wb-column-text").text_content()
    assert sources(page, "#wb-plain-column") == {"wb-from-target"}
    assert "wb-from-accepted" in sources(page, "#wb-drafted-column")
    for chart in ("positions", "lengths", "speedup", "k", "tokens", "all"):
        expect(page.locator(f"#wb-chart-{chart} .main-svg").first).to_be_visible()
    drafted = [state for record in service.recorder.since(-1) for state in record.requests if state.num_draft_tokens]
    expect(page.locator("#wb-draft-table")).to_contain_text(drafted[-1].request_id)
    expect(page.locator("#wb-run-facts")).to_contain_text("Wasted")


def test_race_labels_the_speed_as_shared_and_compares_none(shown: Any):
    _, page = shown
    open_tab(page)
    page.click("#wb-comparison-race")
    expect(page.locator(".wb-badge")).to_have_text("identical ✓")
    expect(page.locator("#wb-plain-column .wb-foot .wb-tag")).to_have_text("shared")
    expect(page.locator("#wb-drafted-column .wb-foot .wb-tag")).to_have_text("shared")
    expect(page.locator("#wb-comparison-verdict")).to_contain_text("speeds are not compared")
    expect(page.locator(".wb-speedup")).to_have_count(0)


def test_sampling_promises_the_distribution_and_leads_to_what_proves_it(shown: Any):
    _, page = shown
    page.locator('#wb-sidebar input[aria-label*="Temperature"]').first.fill("1")
    page.keyboard.press("Tab")
    open_tab(page, 20)
    page.click("#wb-comparison-run")
    badge = page.locator("a.wb-badge")
    expect(badge).to_have_text("same distribution")
    assert badge.get_attribute("href") == "#wb-proof"
    expect(page.locator("#wb-proof")).to_contain_text("arXiv 2211.17192")


def test_stop_ends_a_comparison_which_is_then_marked_as_incomplete(shown: Any):
    service, page = shown
    open_tab(page, 6000)
    page.click("#wb-comparison-run")
    expect(page.locator("#wb-plain-column .wb-column-text span").first).to_be_attached()
    page.click("#wb-comparison-stop")
    expect(page.locator(".wb-badge")).to_have_text("not compared: incomplete")
    expect(page.locator("#wb-plain-column .wb-foot")).to_contain_text("stopped: partial")
    expect(page.locator("#wb-comparison-run")).to_be_enabled()
    wait_until(lambda: service.num_open_requests == 0)


def test_leaving_the_page_ends_a_race(drafting: Any, open_page: Callable[..., Any]):
    service, server = drafting
    watched = on_the_tab(open_page, server)
    page = watched.page
    page.click("#wb-comparison-race")
    expect(page.locator("#wb-plain-column .wb-column-text span").first).to_be_attached()
    page.goto("about:blank")
    watched.errors.clear()  # Gradio's own script reports its stream as broken when the page is left
    wait_until(lambda: service.num_open_requests == 0)


def test_leaving_the_page_before_it_listens_ends_a_race(
    drafting: Any, open_page: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """Gradio notices a broken stream only, and here there is none yet."""
    monkeypatch.setattr(active_turns, "PATIENCE_S", 1.0)
    service, server = drafting
    watched = on_the_tab(open_page, server)
    page = watched.page
    aborted: list[str] = []
    abort = service.abort

    def noted(request_id: str) -> None:
        aborted.append(request_id)
        abort(request_id)

    monkeypatch.setattr(service, "abort", noted)
    page.route("**/queue/data**", lambda route: None)
    page.click("#wb-comparison-race")
    wait_until(lambda: service.num_open_requests == 2)
    page.goto("about:blank")
    watched.errors.clear()
    wait_until(lambda: service.num_open_requests == 0)
    assert len(aborted) >= 2


def test_tab_is_usable_in_chinese_on_a_narrow_page_in_the_light(drafting: Any, open_page: Callable[..., Any]):
    _, server = drafting
    page = open_page(width=390, locale="zh-CN", color_scheme="light").page
    page.goto(server.url)
    expect(page.locator("#wb-apply")).to_have_text(re.compile("[)）]"))
    page.locator('#wb-tabs button[data-tab-id="speculation"]').first.evaluate("button => button.click()")
    expect(page.locator("#wb-comparison-run")).to_have_text("依次运行")
    expect(page.locator("#wb-plain-column")).to_contain_text("不使用投机解码")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.fill("#wb-comparison-prompt textarea", PROMPT)
    page.keyboard.press("Enter")
    expect(page.locator("#wb-comparison-stop")).to_be_enabled()
    page.locator("#wb-comparison-stop").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".wb-badge")).to_be_visible()


def test_timeline_shows_verified_drafts_and_the_inspector_lists_them(shown: Any):
    service, page = shown
    choose(page, "#wb-method", "draft_model")
    before = service.recorder.latest.step_id if service.recorder.latest else -1
    ask(page, PROMPT, max_tokens=NUM_TOKENS)
    expect(finish_reason(page)).to_have_text("length")
    records = service.recorder.since(before)
    verified = [(record, state) for record in records for state in record.requests if state.num_draft_tokens]
    name = verified[0][1].request_id
    # An answer that ends within a draft leaves no token behind it: only the inspector tells that exactly.
    whole = [(record.step_id, state) for record, state in verified if state.num_new_tokens > state.num_accepted_tokens]

    page.locator('#wb-tabs button[data-tab-id="timeline"]').first.evaluate("button => button.click()")
    page.wait_for_function(f"() => wb.recorded.history.last >= {records[-1].step_id}")
    told = page.evaluate("name => wb.recorded.history.rowOf(name).verified", name)
    shown_drafts = dict(zip(told["steps"], zip(told["accepted"], told["rejected"], strict=True), strict=True))
    assert len(shown_drafts) == len(verified)
    for step_id, state in whole:
        rejected = state.num_draft_tokens - state.num_accepted_tokens
        assert shown_drafts[step_id] == (state.num_accepted_tokens, rejected)

    record, state = verified[0]
    page.evaluate("step => wb.store.seek(step)", record.step_id)
    reasons = page.locator('#wb-timeline [data-part="reasons"]')
    expect(reasons).to_contain_text(f"{state.num_accepted_tokens} of {state.num_draft_tokens} drafted tokens accepted")
    expect(page.locator('#wb-timeline [data-part="stepRows"]')).to_contain_text("Draft")
