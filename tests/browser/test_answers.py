"""Several answers, beams, priority and the reasons for waiting, in a real browser over a real engine.

What the engine holds and decided is read from the engine itself, never from what the page shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
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
    wait_until,
)
from tests.browser.running_server import RunningServer
from tests.browser.test_chat_more import download, open_advanced
from tests.models.tiny_gguf import write_tiny_gguf
from workbench.engine.service import EngineService
from workbench.engine.worker import Pause
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import Decision, Explanation, Reason, StepRecord

pytestmark = pytest.mark.browser

NUM_BLOCKS = 64
Tiny = tuple[EngineService, RunningServer]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    """An engine short of memory whose answers differ from each other: 64 blocks of 16, a context of 512 tokens."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path, max_model_len=512)
    sampling = SamplingParams(temperature=1.0, seed=7, ignore_eos=True, max_tokens=100)
    with running(replace(preset(str(path), num_blocks=NUM_BLOCKS), sampling=sampling)) as (service, server):
        service.wait_ready(LOADING_S)
        yield service, server


@pytest.fixture
def chat(tiny: Tiny, open_page: Open) -> Iterator[tuple[EngineService, Page]]:
    """A fresh page with the advanced settings open; at the end nothing may be left in the engine."""
    service, server = tiny
    page = visit(open_page, server, permissions=["clipboard-read", "clipboard-write"])
    open_advanced(page)
    yield service, page
    wait_until(lambda: service.num_open_requests == 0)
    assert active_blocks(service) == 0


@contextmanager
def held_when(service: EngineService, is_so: Callable[[StepRecord], bool]) -> Iterator[StepRecord]:
    """Let the engine run to the first step that is so, hold it there, and let it go on at the end."""
    found: list[StepRecord] = []

    def look(record: StepRecord) -> None:  # in the engine thread, which must not wait for itself
        if not found and is_so(record):
            service._put(Pause(True, Future()))
            found.append(record)

    forget = service.subscribe(look)
    try:
        service.resume()
        wait_until(lambda: bool(found))
        yield found[0]
    finally:
        forget()
        service.resume()


def choose_answers(page: Page, count: int) -> None:
    page.locator("#wb-n label", has_text=str(count)).click()


def ask_held(service: EngineService, page: Page, text: str, max_tokens: int) -> None:
    """Send a message to an engine that stands still, so that no step of it is missed."""
    service.pause()
    before = service.num_open_requests
    ask(page, text, max_tokens=max_tokens)
    wait_until(lambda: service.num_open_requests > before)


def columns(page: Page) -> Any:
    return page.locator(".bot-row").last.locator(".wb-answer")


LONG = "Tell me about block tables, and about what an allocator does when it has nothing left to give away. " * 2


# ------------------------------------------------------------------------------ several answers

CORNER = """block => { const map = document.querySelector('#wb-compact-map canvas'), ratio = devicePixelRatio;
  const layout = wb.geometry.compactLayout(wb.dom.innerWidth(map.parentElement), wb.store.live.numBlocks);
  const [x, y] = layout.at(block);
  const pixel = map.getContext('2d').getImageData((x + layout.cell - 1) * ratio, y * ratio, 1, 1).data;
  return [...pixel].slice(0, 3); }"""


def test_answers_stream_side_by_side_above_the_blocks_that_they_share(chat: Any):
    service, page = chat
    choose_answers(page, 3)
    ask_held(service, page, LONG, max_tokens=40)
    with held_when(service, lambda record: sum(state.num_output_tokens >= 3 for state in record.requests) == 3):
        expect(columns(page)).to_have_count(3)
        states = service.recorder.latest.requests
        names = {state.request_id for state in states}
        blocks = service.pool_snapshot().blocks
        shared = [block.block_id for block in blocks if block.ref_count == 3]
        single = [block.block_id for block in blocks if block.ref_count == 1]
        assert len(names) == 3
        assert len(shared) == states[0].num_prompt_tokens // 16
        assert all(set(blocks[block].request_ids) == names for block in shared)
        assert len(single) >= 3
        first = min(names)
        expect(page.locator("#wb-compact-map [data-part=title]")).to_have_text(f"Your request {first} · 3 sequences")
        expect(page.locator("#wb-compact-map [data-part=rows]")).to_contain_text(
            f"{len(shared) + len(single)} ({len(shared)} shared) of {NUM_BLOCKS}"
        )
        assert {tuple(page.evaluate(CORNER, block)) for block in shared} == {(255, 255, 255)}
        assert (255, 255, 255) not in {tuple(page.evaluate(CORNER, block)) for block in single}
    expect(finish_reason(page)).to_have_text("length")
    expect(columns(page).locator(".wb-foot")).to_have_count(3)
    for number in range(3):
        column = columns(page).nth(number)
        expect(column.locator(".wb-who")).to_contain_text(f"Answer {number + 1} of 3")
        expect(column.locator(".wb-foot")).to_contain_text("TTFT")
        expect(column.locator(".wb-foot")).to_contain_text("40 out")
        expect(column.locator(".wb-foot span").last).to_have_text("length")
    assert len(set(columns(page).locator(".wb-body").all_text_contents())) == 3


def test_chosen_answer_is_what_the_next_message_goes_on_with(
    chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    service, page = chat
    prompts: list[Any] = []
    submit = service.submit

    def noted(prompt: Any, *rest: Any, **more: Any) -> str:
        prompts.append(prompt)
        return submit(prompt, *rest, **more)

    monkeypatch.setattr(service, "submit", noted)
    choose_answers(page, 2)
    ask(page, "hello", max_tokens=12)
    expect(columns(page)).to_have_count(2)
    expect(columns(page).nth(0).locator(".wb-chosen")).to_be_visible()
    columns(page).nth(1).get_by_role("button", name="Choose").click()
    expect(columns(page).nth(1).locator(".wb-chosen")).to_be_visible()
    expect(columns(page).nth(0).locator(".wb-chosen")).to_have_count(0)

    document = json.loads(download(page, "saveJson", tmp_path / "a.json", ".json"))
    first, second = (answer["content"] for answer in document["messages"][1]["answers"])
    assert first != second
    assert (document["messages"][1]["content"], document["messages"][1]["chosen"]) == (second, 1)
    columns(page).nth(0).locator(".wb-act-copy").click()
    expect(columns(page).nth(0).locator(".wb-act-copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == first

    ask(page, "and then?", max_tokens=4)
    wait_until(lambda: len(prompts) == 2)
    roles = (("user", "hello"), ("assistant", second), ("user", "and then?"))
    assert list(prompts[1]) == list(
        service.tokenizer.encode_chat([{"role": role, "content": text} for role, text in roles])
    )
    expect(page.locator(".bot-row")).to_have_count(2)
    expect(finish_reason(page)).to_have_text("length")
    earlier = page.locator(".bot-row").first
    expect(earlier.locator(".wb-act-choose")).to_have_count(0)
    expect(earlier.locator(".wb-answer").nth(1).locator(".wb-chosen")).to_be_visible()


def test_stop_ends_every_answer_and_regenerate_asks_for_all_of_them_again(chat: Any):
    service, page = chat
    choose_answers(page, 2)
    service.pause()
    ask(page, "hello", max_tokens=400)
    wait_until(lambda: service.num_open_requests == 2)
    with held_when(service, lambda record: any(state.num_output_tokens > 3 for state in record.requests)):
        expect(page.locator(".wb-streaming")).to_have_count(2)
        page.click("#wb-stop")
    reasons = columns(page).locator(".wb-foot span:last-child")
    expect(reasons).to_have_text(["abort", "abort"])
    wait_until(lambda: service.num_open_requests == 0)
    page.fill("#wb-max-tokens input", "8")
    page.click("#wb-regenerate")
    expect(reasons).to_have_text(["length", "length"])
    expect(page.locator(".bot-row")).to_have_count(1)


# ------------------------------------------------------------------------------------- beams


def test_beams_come_ranked_with_their_scores(chat: Any):
    service, page = chat
    expect(page.locator("#wb-beam-width")).to_be_hidden()
    page.locator("#wb-use-beam-search input").check()
    page.fill("#wb-beam-width input[type=number]", "2")
    choose_answers(page, 2)
    ask_held(service, page, "hello", max_tokens=12)
    with held_when(service, lambda record: any(state.num_output_tokens == 4 for state in record.requests)):
        expect(page.locator(".bot-row .wb-waiting")).to_have_text("beam search, length 4; its text comes at the end")
    expect(finish_reason(page)).to_have_text("length")
    expect(columns(page)).to_have_count(2)
    labels = columns(page).locator(".wb-who").all_text_contents()
    found = [re.match(r"Beam (\d) · score (−?\d+\.\d\d)", label) for label in labels]
    assert all(found), labels
    ranks, scores = zip(*((int(m[1]), float(m[2].replace("−", "-"))) for m in found if m), strict=True)
    assert ranks == (1, 2)
    assert scores[0] >= scores[1]
    assert scores[0] < 0
    expect(columns(page).locator(".wb-foot").first).to_contain_text("in all")
    expect(page.locator(".bot-row .wb-who").first).to_contain_text("2 beams")


# ----------------------------------------------------------------------------------- priority


def test_priority_reaches_the_scheduler_and_outlives_a_reload(chat: Any):
    service, page = chat
    seen: set[int] = set()
    forget = service.subscribe(lambda record: seen.update(state.priority for state in record.requests))
    page.fill("#wb-priority input", "-3")
    page.locator("#wb-priority input").blur()
    page.wait_for_function("localStorage.getItem('wb-sampling')?.length > 100")  # the form has taken it over
    ask(page, "hello", max_tokens=4)
    expect(finish_reason(page)).to_have_text("length")
    forget()
    assert seen == {-3}
    page.reload()
    open_advanced(page)
    expect(page.locator("#wb-priority input")).to_have_value("-3")


# --------------------------------------------------------------------------- why it waits


def explained(record: StepRecord, decision: Decision, reason: Reason) -> Explanation | None:
    """What the step decided about the newest request, if it is this."""
    newest = max((e.request_id for e in record.explanations), key=lambda name: int(name[1:]), default=None)
    return next(
        (e for e in record.explanations if (e.request_id, e.decision, e.reason) == (newest, decision, reason)), None
    )


def fill_the_pool(service: EngineService) -> None:
    """Two requests that leave 4 of the 64 blocks and need those later."""
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=32)
    for first in (3, 4):
        service.submit([first, *range(5, 5 + 200), *range(5, 5 + 200)] + [9] * 63, params, lambda event: None)


def test_waiting_answer_says_what_it_needs_and_what_is_free(chat: Any):
    service, page = chat
    service.pause()
    fill_the_pool(service)
    ask_held(service, page, LONG, max_tokens=4)
    with held_when(
        service, lambda record: explained(record, Decision.DEFERRED, Reason.NO_FREE_BLOCKS) is not None
    ) as record:
        told = explained(record, Decision.DEFERRED, Reason.NO_FREE_BLOCKS)
        assert told is not None
        needed, free = told.numbers["needed_blocks"], told.numbers["free_blocks"]
        assert needed > free
        are = "is" if free == 1 else "are"
        expect(page.locator(".bot-row .wb-why")).to_have_text(f"waiting: needs {needed} blocks, {free} {are} free")
        expect(page.locator(".bot-row .wb-waiting")).to_have_text("queued #1")
    expect(finish_reason(page)).to_have_text("length")
    expect(page.locator(".wb-why")).to_have_count(0)


def test_preempted_answer_says_who_needed_its_blocks(chat: Any):
    service, page = chat
    service.pause()
    fill_the_pool(service)
    ask_held(service, page, "hi", max_tokens=60)
    with held_when(
        service, lambda record: explained(record, Decision.PREEMPTED, Reason.NO_FREE_BLOCKS) is not None
    ) as record:
        told = explained(record, Decision.PREEMPTED, Reason.NO_FREE_BLOCKS)
        assert told is not None
        expect(page.locator(".bot-row .wb-why").first).to_contain_text(f"preempted: {told.cause_request_id} needed")
        expect(page.locator(".bot-row .wb-why").first).to_contain_text("computed again later")
    expect(finish_reason(page)).to_have_text("length")
    expect(page.locator(".wb-foot")).to_contain_text("preempted 1×")


# ------------------------------------------------------------------------------ prefix cache


def test_footer_says_at_which_token_a_prompt_left_what_was_cached(chat: Any):
    service, page = chat
    same = "A question that no other test asks, so that only its first half is found again. " * 2
    texts = [same + "Here it ends one way.", same + "There it goes on in another."]
    ask(page, texts[0], max_tokens=4)
    expect(finish_reason(page)).to_have_text("length")
    page.click("#wb-clear")
    expect(page.locator(".bot-row")).to_have_count(0)
    ask(page, texts[1], max_tokens=4)
    expect(finish_reason(page)).to_have_text("length")
    one, other = (service.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts)
    parted = next(place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    cached = parted // 16 * 16
    expect(page.locator(".wb-foot")).to_contain_text(
        f"prompt {len(other)} ({cached} cached; differs at token {parted})"
    )
