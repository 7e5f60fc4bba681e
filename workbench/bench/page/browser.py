"""A real Chromium, driven through playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from workbench.config import read_environment
from workbench.errors import BackendUnavailableError, EngineError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CANDIDATES: Final = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str:
    """Return the path of a Chromium: WORKBENCH_CHROMIUM's, or the system's.

    Raises:
        BackendUnavailableError: there is none.
    """
    given = read_environment().browser
    found = (shutil.which(candidate) for candidate in ((given,) if given else CANDIDATES))
    path = next((path for path in found if path), None)
    if path is None:
        where = (
            f"WORKBENCH_CHROMIUM={given} is no program" if given else f"none of {', '.join(CANDIDATES)} is installed"
        )
        raise BackendUnavailableError(
            f"no Chromium found: {where}. Install one (on Debian: apt-get install chromium), "
            "or give its path in WORKBENCH_CHROMIUM"
        )
    return path


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a running Chromium without a window.

    Raises:
        BackendUnavailableError: there is none, or playwright is not installed.
        EngineError: the page did not do in time what it was asked for.
    """
    path = find_chromium()
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise BackendUnavailableError(
            "playwright, which drives the browser, is not installed: pip install -r requirements-dev.txt"
        ) from error
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        except Error as error:
            raise EngineError(f"the page did not answer the browser: {error.message.splitlines()[0]}") from error
        finally:
            browser.close()
