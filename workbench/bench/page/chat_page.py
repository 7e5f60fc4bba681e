"""The page as a person works it: opened, asked, stopped, watched."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workbench.errors import EngineError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WAIT_MS: Final = 60_000
ENDLESS: Final = 6000
"""Output tokens of an answer that is to go on until it is stopped."""
STREAMS: Final = "() => (document.querySelector('.wb-streaming')?.textContent.length || 0) > 20"
IS_IDLE: Final = """count => document.querySelectorAll('.bot-row').length === count
  && document.querySelectorAll('#wb-stop[disabled]').length === 1 && !document.querySelector('.wb-streaming')"""

WATCH_STOP: Final = """() => { window.wbStopped = new Promise((done) => {
  let clickedAt = null;
  document.addEventListener('click', (event) => {
    if (event.target.closest('#wb-stop')) clickedAt = event.timeStamp;
  }, { capture: true, once: true });
  const watch = new MutationObserver(() => {
    const reason = [...document.querySelectorAll('.wb-foot')].at(-1)?.lastElementChild?.textContent;
    if (clickedAt === null || reason !== 'abort') return;
    watch.disconnect();
    done(performance.now() - clickedAt);
  });
  watch.observe(document.querySelector('#wb-chatbot'), { subtree: true, childList: true, characterData: true });
}); }"""

WATCH_FRAMES: Final = """() => {
  const counts = [];
  let startedAt = null;
  const count = (now) => {
    if (!window.wbFrames) return;
    startedAt ??= now;
    const second = Math.floor((now - startedAt) / 1000);
    while (counts.length <= second) counts.push(0);
    counts[second]++;
    requestAnimationFrame(count);
  };
  window.wbFrames = counts;
  requestAnimationFrame(count);
}"""
TAKE_FRAMES: Final = "() => { const counts = window.wbFrames; window.wbFrames = null; return counts.slice(0, -1); }"


@dataclass(frozen=True)
class Load:
    """What a tab cost the browser while it was watched."""

    frames_per_s: tuple[int, ...]
    """Animation frames of each whole second."""
    main_thread_fraction: float
    """Of the time in which the main thread ran a task, or waited in one for a core."""
    main_thread_cpu_fraction: float
    """The same without waiting."""
    script_fraction: float
    """Of the time in which it ran scripts."""
    updates_per_s: float
    """Frames of the live feed that came."""

    @property
    def fps_p50(self) -> float:
        """Frames per second, the median over the seconds."""
        return statistics.median(self.frames_per_s)


@contextlib.contextmanager
def visitor(browser: Browser, url: str) -> Iterator[Page]:
    """Yield the page, opened by a visitor of one's own who has seen the guided tour and lets things move."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 900}, reduced_motion="no-preference", locale="en-US"
    )
    context.add_init_script("try { localStorage.setItem('wb-guide', 'done'); } catch { /* no page yet */ }")
    try:
        yield open_page(context.new_page(), url)
    finally:
        context.close()


def open_page(page: Page, url: str) -> Page:
    """Open the page in a tab and wait until it takes messages."""
    page.set_default_timeout(WAIT_MS)
    page.goto(url)
    page.wait_for_function("window.wb && wb.store.service && wb.store.live.numBlocks > 0")
    page.wait_for_function("document.querySelector('#wb-apply')?.textContent.includes('no changes')")
    return page


def ignore_end_of_text(page: Page) -> None:
    """Let answers go on until they have their number of tokens."""
    page.click("#wb-advanced > button")
    page.locator("#wb-ignore-eos input").check()


def ask(page: Page, text: str, max_tokens: int = ENDLESS) -> None:
    """Send a message."""
    page.fill("#wb-max-tokens input", str(max_tokens))
    page.fill("#wb-message textarea", text)
    page.click("#wb-send")


def wait_until_streaming(page: Page) -> None:
    """Wait until some of an answer is there."""
    page.wait_for_function(STREAMS)


def answer_shortly(page: Page, number: int) -> None:
    """Add message number `number`, from 1, with an answer of four tokens."""
    ask(page, f"Message {number}: name one colour.", max_tokens=4)
    page.wait_for_function(IS_IDLE, arg=number)


def stop(page: Page) -> float:
    """Press Stop; return the seconds from the click until the page says that the answer was aborted."""
    page.evaluate(WATCH_STOP)
    page.click("#wb-stop")
    took_ms: float = page.evaluate("() => window.wbStopped")
    page.wait_for_function("!document.querySelector('#wb-send').disabled")
    return took_ms / 1000


def show_tab(page: Page, name: str) -> None:
    """Click a tab of the page."""
    page.get_by_role("tab", name=name, exact=True).click()


def watch(page: Page, seconds: float) -> Load:
    """Watch the page for twice the seconds: first its main thread, then its frames, since counting those costs, too.

    Raises:
        EngineError: the answer ended meanwhile.
    """
    wall, cpu = _Clock(page, "timeTicks"), _Clock(page, "threadTicks")
    began_s = time.perf_counter()
    page.wait_for_timeout(1000 * seconds)
    ran, computed, passed_s = wall.stop(), cpu.stop(), time.perf_counter() - began_s
    updates_per_s = float(page.evaluate("() => wb.feed.rate().perSecond"))
    page.evaluate(WATCH_FRAMES)
    page.wait_for_timeout(1000 * seconds)
    frames = page.evaluate(TAKE_FRAMES)
    if not page.evaluate("() => document.querySelectorAll('.wb-streaming').length"):
        raise EngineError("the answer ended while the page was watched: watch for less time")
    return Load(
        frames_per_s=tuple(frames),
        main_thread_fraction=ran["TaskDuration"] / passed_s,
        main_thread_cpu_fraction=computed["TaskDuration"] / passed_s,
        script_fraction=ran["ScriptDuration"] / passed_s,
        updates_per_s=updates_per_s,
    )


class _Clock:
    """Chromium's own sums of what the main thread did, in seconds of a time domain."""

    def __init__(self, page: Page, time_domain: str) -> None:
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": time_domain})
        self._before = self._read()

    def stop(self) -> dict[str, float]:
        """Return what has been added since the beginning, by name."""
        after = self._read()
        self._session.detach()
        return {name: value - self._before[name] for name, value in after.items()}

    def _read(self) -> dict[str, float]:
        return {each["name"]: each["value"] for each in self._session.send("Performance.getMetrics")["metrics"]}
