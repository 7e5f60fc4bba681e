"""`python -m docs.make_screenshots`: each tab of the page, light and dark, as the documents show it.

The pictures are of a real engine at work: a chat message with three answers, eight background requests and a burst
that shares its beginning. Needs what `make test` installs, and a Chromium.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from workbench.bench.page import chat_page
from workbench.bench.page.browser import chromium
from workbench.bench.page.servers import running
from workbench.config import prepare_process
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER: Final = Path(__file__).parent
THEMES: Final = ("light", "dark")
MOST_BYTES: Final = 300_000
NUM_ANSWERS: Final = 3
ANSWER_TOKENS: Final = 700
"""Enough to stream until the last picture is taken."""
STREAMED_CHARACTERS: Final = 160
"""Of each answer, before the first picture."""
TEMPERATURE: Final = "0.8"
"""So that the answers differ."""
STEPS_UNTIL_CROWDED: Final = 4
QUESTIONS: Final = (
    "What does a block table map, and why does an engine keep one for each request?",
    "Explain in simple words how a server can answer many people at once.",
)
COPYING: Final = (
    "Correct the spelling of this text and change nothing else: The alocator keeps a list of free blocks. When a "
    "request needs a block, the alocator takes the first free block from the list. When the request ends, the alocator "
    "puts the block back."
)
HAS_VERDICT: Final = "() => document.querySelector('.wb-badge')?.textContent.includes('identical')"
APP: Final = ("app.py", "--host", "127.0.0.1", "--port", "0", "--num-blocks", "320")
"""A pool that so many requests can fill to a good part."""
HAVE_STREAMED: Final = """least => { const all = [...document.querySelectorAll('.wb-streaming')];
  return all.length > 0 && all.every(one => one.textContent.length > least); }"""
SETTLE_MS: Final = 700


def main() -> int:
    """Write the pictures. Returns the exit code."""
    prepare_process()
    try:
        with chromium() as browser, running(APP) as url, chat_page.visitor(browser, url) as page:
            shoot_speculation(page)
            crowded_step = fill(page)
            shoot_chat(page)
            shoot_blocks(page)
            shoot_timeline(page, crowded_step)
    except WorkbenchError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def fill(page: Page) -> int:
    """Let the engine have enough to do to be worth a picture. Return a step in which many requests came in."""
    chat_page.ask(page, QUESTIONS[0], max_tokens=60)
    page.wait_for_function(chat_page.IS_IDLE, arg=1)
    chat_page.ignore_end_of_text(page)
    page.locator("#wb-n label", has_text=str(NUM_ANSWERS)).click()
    page.click("#wb-advanced > button")
    temperature = page.locator('input[type=number][aria-label*="Temperature"]')
    temperature.fill(TEMPERATURE)
    temperature.press("Tab")
    quiet_step: int = page.evaluate("() => wb.store.live.stepId")
    page.click("#wb-burst")
    page.click("#wb-background")
    chat_page.ask(page, QUESTIONS[1], max_tokens=ANSWER_TOKENS)
    page.wait_for_function(HAVE_STREAMED, arg=STREAMED_CHARACTERS)
    page.locator("#wb-sidebar *").evaluate_all("all => all.forEach((one) => one.scrollTop && one.scrollTo(0, 0))")
    return quiet_step + STEPS_UNTIL_CROWDED


def shoot_speculation(page: Page) -> None:
    """One prompt with and without prompt lookup, and what became of the drafts."""
    chat_page.show_tab(page, "Speculation")
    page.locator("#wb-comparison-method label", has_text="ngram").click()
    page.fill("#wb-comparison-prompt textarea", COPYING)
    page.click("#wb-comparison-run")
    page.wait_for_function(HAS_VERDICT)
    shoot(page, "speculation")
    chat_page.show_tab(page, "Chat")


def shoot_chat(page: Page) -> None:
    """The conversation beside the pool."""
    shoot(page, "chat")


def shoot_blocks(page: Page) -> None:
    """The map, with the visitor's own answer selected."""
    chat_page.show_tab(page, "Blocks")
    page.evaluate("() => wb.store.select([...wb.store.mine].find((id) => wb.store.live.byId.has(id)) ?? null, -1)")
    shoot(page, "blocks")


def shoot_timeline(page: Page, step: int) -> None:
    """The timeline, with a step selected in which there was something to decide."""
    chat_page.show_tab(page, "Timeline")
    page.evaluate("step => wb.store.seek(step)", step)
    page.wait_for_function("step => wb.store.past && wb.store.past.stepId === step", arg=step)
    shoot(page, "timeline")


def shoot(page: Page, name: str) -> None:
    """Take one tab in both themes; the engine goes on meanwhile."""
    page.mouse.move(0, 0)
    for theme in THEMES:
        if page.evaluate("() => document.body.classList.contains('dark') ? 'dark' : 'light'") != theme:
            page.click("#wb-theme")
        page.wait_for_timeout(SETTLE_MS)
        path = FOLDER / f"screenshot-{name}-{theme}.png"
        page.screenshot(path=path)
        sys.stdout.write(f"{path.name}: {path.stat().st_size / 1000:.0f} kB\n")
        if path.stat().st_size > MOST_BYTES:
            sys.stderr.write(f"{path.name} is larger than {MOST_BYTES / 1000:.0f} kB\n")


if __name__ == "__main__":
    raise SystemExit(main())
