"""A saved run opened in the page of a running engine: shown as it was live, apart from the chat, and let go of."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from app import build_app
from tests.browser.chat_page import ask, wait_until
from tests.browser.map_page import (
    MAP,
    WAYS,
    OpenPage,
    Serve,
    build_map_app,
    next_frame,
    open_map,
    run_steps,
    shown_states,
    submit_random,
    wait_for_step,
)
from tests.browser.running_server import DEADLINE_MS
from tests.browser.test_replay_pixels import look_of
from tests.browser.timeline_page import read, wait_for_history
from tests.server.fake_service import FakeService
from tests.server.live_client import states_in
from tests.telemetry.test_history import random_run
from workbench.engine.messages import RequestFinished, ServiceState
from workbench.engine.service import EngineService
from workbench.presets import Preset
from workbench.sampling_params import SamplingParams
from workbench.server.replay import open_replay
from workbench.server.saved_runs import MOST_FILE_BYTES
from workbench.telemetry.run_file import write_run
from workbench.ui import explain

expect.set_options(timeout=DEADLINE_MS)

PRESET = Preset("default", "Default", "For tests.", {}, SamplingParams(temperature=0.0, max_tokens=40))
STATUS = {"state": "ready", "model_name": "simulated"}
BLOCKS, TIMELINE = "#wb-block-map", "#wb-timeline"
DROP = """([selector, name, data]) => {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([bytes], name));
  const target = document.querySelector(selector);
  const send = (type) => target.dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true }));
  send('dragover');
  const hint = target.closest('.wb-two').querySelector('.wb-drop-here');
  const isHinted = !hint.hidden;
  send('drop');
  return [isHinted, hint.hidden];
}"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The file of a run of 120 steps over 24 blocks."""
    base, records = random_run(120, seed=2).history.base_and_records()
    path = tmp_path / "night.jsonl.gz"
    path.write_bytes(b"".join(write_run(base, records, STATUS, "paged")))
    return path


def visit(page: Page, url: str, tab: str = "Blocks") -> None:
    page.goto(f"{url}/?__theme=dark")
    page.wait_for_function("window.wb && wb.store.service && wb.store.live.numBlocks > 0")
    open_tab(page, tab)


def open_tab(page: Page, name: str) -> None:
    page.locator(f'#wb-tabs button[role="tab"][data-tab-id="{name.lower()}"]').click()


def choose(page: Page, path: Path, where: str = BLOCKS) -> None:
    """Choose a file with the page's own button."""
    with page.expect_file_chooser() as chooser:
        opener(page, where).click()
    chooser.value.set_files(path)


def opener(page: Page, where: str = BLOCKS) -> Locator:
    return page.locator(where).get_by_role("button", name="Open a saved run…")


def banner(page: Page) -> Locator:
    return page.locator("#wb-header [data-part=run]")


def expect_run(page: Page, last: int) -> None:
    """Wait until the page shows the end of a saved run."""
    expect(banner(page)).to_be_visible()
    page.wait_for_function("last => wb.savedRun.facts() && wb.store.live.stepId === last", arg=last)
    next_frame(page)


def expect_engine(page: Page) -> None:
    page.wait_for_function("() => window.wb && wb.store.service && !wb.savedRun.facts()")
    expect(banner(page)).to_be_hidden()
    expect(page.locator("#wb-header [data-part=feed]")).to_have_text("live")


def seek(page: Page, step_id: int) -> None:
    page.evaluate("step => wb.store.seek(step)", step_id)
    page.wait_for_function("step => wb.store.view().stepId === step", arg=step_id)


@contextmanager
def computing(service: EngineService) -> Iterator[None]:
    """The engine goes on and on, until the end of the block: an answer that ends is followed by another."""
    params = SamplingParams(max_tokens=1000, ignore_eos=True)
    is_over = threading.Event()

    def answer() -> None:
        has_ended = threading.Event()
        name = service.submit(
            [5, 6, 7, 8], params, lambda event: has_ended.set() if isinstance(event, RequestFinished) else None
        )
        while not (has_ended.wait(0.05) or is_over.is_set()):
            pass
        service.abort(name)

    def keep_busy() -> None:
        while not is_over.is_set():
            answer()

    thread = threading.Thread(target=keep_busy)
    thread.start()
    service.resume()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def steps_done(service: EngineService) -> int:
    latest = service.recorder.latest
    return -1 if latest is None else latest.step_id


# ------------------------------------------------------------------ shown as it was


def test_saved_run_shows_what_live_showed_at_the_same_steps_while_the_engine_computes_on(
    service: EngineService, serve: Serve, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page().page
    visit(page, serve(build_app(service, {"default": PRESET}, PRESET, show_text=True)).url)
    page.locator(MAP).wait_for(state="visible")
    service.pause()
    rng = random.Random(5)
    live, states = {}, {}
    for _ in range(5):
        submit_random(service, rng, 6)
        run_steps(service, 19)
        snapshot = service.pool_snapshot()
        wait_for_step(page, snapshot.step_id)
        live[snapshot.step_id], states[snapshot.step_id] = look_of(page), states_in(snapshot)
    assert len({look["map"] for look in live.values()}) == 5
    last = max(live)
    with page.expect_download() as download:
        page.locator(BLOCKS).get_by_role("link", name="Save the recorded run").click()
    saved = tmp_path / download.value.suggested_filename
    download.value.save_as(saved)

    with computing(service):
        page.wait_for_function("last => wb.store.live.stepId > last", arg=last)
        choose(page, saved)
        expect_run(page, last)
        expect(page.locator("#wb-header [data-part=feed]")).to_have_text("saved run")
        for step_id in sorted(live, key=lambda step: (step * 7919) % 101):
            seek(page, step_id)
            assert look_of(page) == live[step_id], step_id
            assert shown_states(page) == states[step_id]
        open_tab(page, "Timeline")
        wait_for_history(page, last)
        assert read(page, "v.history.instance === wb.store.known.instance")
        before = steps_done(service)
        wait_until(lambda: steps_done(service) > before + 5)
        assert page.evaluate("wb.store.live.stepId") == last
        page.get_by_role("button", name="Back to the live engine").click()
        expect_engine(page)
        page.wait_for_function("last => wb.store.live.stepId > last && !wb.store.isFrozen()", arg=last)
        page.wait_for_function("() => wb.recorded.history.last > " + str(last))


def test_banner_says_in_all_tabs_which_run_is_open(serve: Serve, open_page: OpenPage, run: Path) -> None:
    page = open_page().page
    service: Any = FakeService()
    visit(page, serve(build_app(service, {"default": PRESET}, PRESET, show_text=True)).url)
    choose(page, run)
    expect_run(page, 119)
    for tab in ("Chat", "Blocks", "Timeline"):
        open_tab(page, tab)
        expect(banner(page)).to_contain_text(
            re.compile(
                r"Saved run night\.jsonl\.gz · steps 0–119 · simulated · saved at .*202\d.* · "
                r"request names, no prompts"
            )
        )
    open_tab(page, "Timeline")
    expect(page.locator(f"{TIMELINE} [data-part=following]")).to_have_text("end of the run")
    expect(page.locator(f"{TIMELINE} [data-part=freeze]")).to_be_disabled()
    expect(page.locator("#wb-status-line [data-part=elsewhere]")).to_be_visible()
    expect(page.locator("#wb-status-line [data-part=here]")).to_be_hidden()


def test_redacted_run_can_be_saved_and_says_that_it_is(
    service: EngineService, serve: Serve, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    service.pause()
    names = submit_random(service, random.Random(1), 3)
    run_steps(service, 12)
    last = steps_done(service)
    wait_for_step(page, last)
    with page.expect_download() as download:
        page.get_by_role("link", name="Save the run redacted").click()
    saved = tmp_path / download.value.suggested_filename
    download.value.save_as(saved)
    text = gzip.decompress(saved.read_bytes()).decode()
    assert json.loads(text.splitlines()[0])["is_redacted"]
    assert [name for name in names if f'"{name}"' in text] == []
    choose(page, saved)
    expect_run(page, last)
    expect(banner(page)).to_contain_text("redacted: no request names, no prompts")


# ------------------------------------------------------------------ ways to open and to leave


@pytest.mark.parametrize("where", [BLOCKS, TIMELINE], ids=["map", "timeline"])
def test_file_that_is_dropped_is_opened(serve: Serve, open_page: OpenPage, run: Path, where: str) -> None:
    page = open_page().page
    service: Any = FakeService()
    service.step()
    url = serve(build_app(service, {"default": PRESET}, PRESET, show_text=True)).url
    visit(page, url, "Blocks" if where == BLOCKS else "Timeline")
    canvas = f"{where} canvas[data-part={'map' if where == BLOCKS else 'timeline'}]"
    page.locator(canvas).wait_for(state="visible")
    data = base64.b64encode(run.read_bytes()).decode()
    assert page.evaluate(DROP, [canvas, run.name, data]) == [True, True]
    expect_run(page, 119)


def test_run_opens_and_closes_by_keyboard_alone(serve: Serve, open_page: OpenPage, run: Path) -> None:
    page = open_page().page
    service: Any = FakeService()
    service.step()
    visit(page, serve(build_app(service, {"default": PRESET}, PRESET, show_text=True)).url)
    page.locator(MAP).wait_for(state="visible")
    page.locator(MAP).focus()
    reached: list[str] = []
    while "Open a saved run…" not in reached and len(reached) < 14:
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent"))
    assert reached[-1] == "Open a saved run…", reached
    page.on(
        "filechooser", lambda chooser: chooser.set_files(run)
    )  # from before: a key is quicker than its interception
    page.evaluate("0")
    page.keyboard.press("Enter")
    expect_run(page, 119)
    page.locator(MAP).focus()
    page.keyboard.press("Escape")
    page.keyboard.press(",")
    page.wait_for_function("() => wb.store.view().stepId === 118")
    expect(banner(page)).to_be_visible()
    page.keyboard.press("f")
    page.wait_for_function("() => wb.store.view().stepId === 119")
    page.get_by_role("button", name="Back to the live engine").focus()
    page.keyboard.press("Enter")
    expect_engine(page)
    assert page.evaluate("document.activeElement.getAttribute('data-tab-id')") == "blocks"


def test_reload_returns_to_the_engine(serve: Serve, open_page: OpenPage, run: Path) -> None:
    page = open_page().page
    service = FakeService()
    service.step()
    open_map(page, serve(build_map_app(service)).url)
    choose(page, run)
    expect_run(page, 119)
    page.reload()
    expect_engine(page)
    assert page.evaluate("wb.store.live.stepId") == 0


@WAYS
def test_run_that_the_server_has_lost_is_said_and_the_engine_is_shown_again(
    serve: Serve, open_page: OpenPage, run: Path, init_script: str | None
) -> None:
    watched = open_page(init_script=init_script)
    watched.expects_a_lost_server = True
    page = watched.page
    service = FakeService()
    service.step()
    server = serve(build_map_app(service))
    open_map(page, server.url)
    choose(page, run)
    expect_run(page, 119)
    port = server.port
    server.stop()
    again = FakeService(num_blocks=32)
    again.step()
    serve(build_map_app(again), port)
    lost = page.locator("#wb-header [data-part=runLost]")
    expect(lost).to_contain_text(
        "The saved run night.jsonl.gz is not open on the server any more: open the file again."
    )
    expect_engine(page)
    assert page.evaluate("[wb.store.live.numBlocks, wb.store.live.stepId]") == [32, 0]
    page.locator("#wb-header [data-part=runLostDismiss]").click()
    expect(lost).to_be_hidden()


@pytest.mark.parametrize("state", [ServiceState.LOADING, ServiceState.FAILED])
def test_run_opens_where_no_engine_runs_and_leaves_nothing_behind(
    serve: Serve, open_page: OpenPage, run: Path, state: ServiceState
) -> None:
    page = open_page().page
    service: Any = FakeService()
    service.status = msgspec.structs.replace(service.status, state=state, num_blocks=0, epoch=0)
    page.goto(serve(build_app(service, {"default": PRESET}, PRESET, show_text=True)).url)
    open_tab(page, "Blocks")
    expect(page.locator(BLOCKS).get_by_role("link", name="Save the recorded run")).to_be_hidden()
    choose(page, run)
    expect_run(page, 119)
    expect(page.locator(MAP)).to_be_visible()
    open_tab(page, "Timeline")
    wait_for_history(page, 119)
    page.get_by_role("button", name="Back to the live engine").click()
    page.wait_for_function("() => !wb.savedRun.facts() && wb.store.live.numBlocks === 0")
    expect(page.locator(f"{TIMELINE} [data-part=empty]")).to_have_text("The timeline appears when the model is loaded.")
    open_tab(page, "Blocks")
    expect(page.locator(MAP)).to_be_hidden()


def test_run_over_another_run_leads_back_to_that_one(serve: Serve, open_page: OpenPage, run: Path) -> None:
    page = open_page().page
    base, records = random_run(30, seed=4).history.base_and_records()
    first = run.with_name("first.jsonl.gz")
    first.write_bytes(b"".join(write_run(base, records, STATUS, "paged")))
    replay = open_replay(first)
    open_map(page, serve(build_map_app(replay, feed=replay.feed(explain))).url)
    expect(banner(page)).to_contain_text("Saved run first.jsonl.gz · steps 0–29")
    expect(banner(page).get_by_role("button")).to_be_hidden()
    choose(page, run)
    expect_run(page, 119)
    links = page.locator(BLOCKS).get_by_role("link", name="Save the recorded run")
    assert "/runs/" in (links.get_attribute("href") or "")
    banner(page).get_by_role("button", name="Back to first.jsonl.gz").click()
    expect_run(page, 29)
    expect(banner(page)).to_contain_text("Saved run first.jsonl.gz")
    assert "/runs/" not in (links.get_attribute("href") or "")


# ------------------------------------------------------------------ what is refused


def test_corrupt_file_is_refused_with_one_message_and_live_goes_on(
    serve: Serve, open_page: OpenPage, run: Path
) -> None:
    watched = open_page()
    watched.expects_a_lost_server = True  # 422 is what it should be
    page = watched.page
    service = FakeService()
    service.step()
    open_map(page, serve(build_map_app(service)).url)
    run.write_bytes(run.read_bytes()[:700])
    choose(page, run)
    said = page.locator(f"{BLOCKS} [data-part=runSaid]")
    expect(said).to_have_text(
        "Not opened: night.jsonl.gz ends too early: it was not saved or copied to its end; save it again"
    )
    service.step()
    wait_for_step(page, 1)
    expect_engine(page)
    base, records = random_run(30, seed=4).history.base_and_records()
    run.write_bytes(b"".join(write_run(base, records, STATUS, "paged")))
    choose(page, run)  # the same file, mended
    expect_run(page, 29)
    expect(said).to_be_hidden()


def test_file_above_the_limit_is_not_even_sent(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    service = FakeService()
    service.step()
    open_map(page, serve(build_map_app(service)).url)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    page.evaluate("size => wb.savedRun.open(new File([new Uint8Array(size)], 'big.gz'))", MOST_FILE_BYTES + 1)
    expect(page.locator(f"{BLOCKS} [data-part=runSaid]")).to_have_text(
        "Not opened: big.gz has 65 MiB, the page opens at most 64 MiB: open it with python app.py --replay FILE"
    )
    assert "POST" not in sent


# ------------------------------------------------------------------ not mixed up with the engine


def test_engine_is_not_asked_about_blocks_of_a_saved_run(serve: Serve, open_page: OpenPage, run: Path) -> None:
    page = open_page().page
    service = FakeService(num_blocks=24)
    service.engine.add(40, 20)
    for _ in range(4):
        service.step()
    open_map(page, serve(build_map_app(service)).url)
    held = page.evaluate("[...wb.store.live.status].findIndex(s => s === wb.store.ACTIVE)")
    page.evaluate("block => wb.store.select(null, block)", held)
    label = page.locator(f"{BLOCKS} [data-part=tokensLabel]")
    expect(label).to_contain_text("decoded")
    choose(page, run)
    expect_run(page, 119)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.method == "POST" else None)
    held = page.evaluate("[...wb.store.live.status].findIndex(s => s === wb.store.ACTIVE)")
    page.evaluate("block => wb.store.select(null, block)", held)
    expect(label).to_contain_text(": not in the file of a saved run")
    expect(page.locator(f"{BLOCKS} [data-part=tokens]")).to_be_hidden()
    seek(page, 100)
    page.wait_for_timeout(400)  # longer than the map waits before it asks
    assert asked == []


def test_chat_goes_on_with_the_engine_and_nothing_of_the_run_is_yours(
    service: EngineService, serve: Serve, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page().page
    url = serve(build_app(service, {"default": PRESET}, PRESET, show_text=True)).url
    visit(page, url, "Chat")
    expect(page.locator("#wb-apply")).to_have_text("Apply (no changes)")
    ask(page, "hello", 12)
    expect(page.locator(".wb-foot").last).to_contain_text("length")
    own = page.evaluate("[...wb.store.mine]")
    assert len(own) == 1
    saved = tmp_path / "run.jsonl.gz"
    with urllib.request.urlopen(f"{url}/history/save") as answer:
        saved.write_bytes(answer.read())
    open_tab(page, "Blocks")
    choose(page, saved)
    expect(banner(page)).to_be_visible()
    page.wait_for_function("() => wb.savedRun.facts()")
    page.evaluate("wb.store.seek(wb.store.range.first + 2)")
    chip = page.locator(f"{BLOCKS} [data-part=chips] .wb-chip")
    expect(chip).to_contain_text(own[0])
    expect(chip).not_to_contain_text("you")
    open_tab(page, "Chat")
    expect(page.locator("#wb-compact-map")).to_contain_text("A saved run is open in Blocks and Timeline.")
    expect(page.locator("#wb-compact-map canvas")).to_be_hidden()
    ask(page, "and again", 12)
    expect(page.locator("button.wb-foot")).to_have_count(2)
    expect(page.locator(".wb-foot").last).to_contain_text("length")
    page.locator(".wb-foot").last.click()
    expect(page.locator("section[aria-label='This conversation']")).to_contain_text("go back to it first")
    page.get_by_role("button", name="Back to the live engine").click()
    expect_engine(page)
    expect(page.locator("#wb-compact-map canvas")).to_be_visible()
    assert len(page.evaluate("[...wb.store.mine]")) == 2


def test_saved_run_speaks_chinese(serve: Serve, open_page: OpenPage, run: Path) -> None:
    page = open_page(init_script=None, locale="zh-CN").page
    service = FakeService()
    service.step()
    open_map(page, serve(build_map_app(service)).url)
    with page.expect_file_chooser() as chooser:
        page.locator(BLOCKS).get_by_role("button", name="打开已保存的运行…").click()
    chooser.value.set_files(run)
    expect_run(page, 119)
    expect(banner(page)).to_contain_text(
        re.compile(
            r"已保存的运行 night\.jsonl\.gz · 第 0–119 步 · simulated · 保存于 .*202\d年.* · 含请求名称，没有提示词"
        )
    )
    expect(page.locator("#wb-header [data-part=feed]")).to_have_text("已保存的运行")
    assert re.findall(r"[A-Za-z]{3,}", banner(page).inner_text().replace("night.jsonl.gz", "")) == ["simulated"]
