"""The page in a real Chromium: frames per second and main thread, and how soon Stop and a closed tab act.

Frame rate and main thread are measured on the recorded run of an engine that has stopped, since a running one would
take the cores from the browser. Stop and closing are measured on the workbench as it runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np

from workbench.bench.command_line import log
from workbench.bench.page import chat_page
from workbench.bench.page.browser import chromium
from workbench.bench.page.chat_page import Load
from workbench.bench.page.servers import running, wait_until_free
from workbench.bench.report import Report, describe_environment
from workbench.errors import ConfigurationError
from workbench.presets import DEFAULT_PRESET, load_presets, select_preset

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MESSAGES: Final = 40
QUESTION: Final = "Tell a long story about a lighthouse keeper."
STREAMED_MS: Final = 300
"""How long an answer streams before it is stopped, or its tab closed."""
SETTLE_MS: Final = 1500
"""From the beginning of an answer, or a click on a tab, until it is watched."""
RECORDED_AROUND_S: Final = 8.0
"""Recorded beyond what is watched, for the ways between."""
FEW_UPDATES: Final = 9.0
"""Frames of the feed a second below which the page had less to do than it is to be measured with."""
TABS: Final = ("Chat", "Blocks")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="how long each figure of a tab is watched (default: 6)"
    )
    parser.add_argument("--trials", type=int, default=10, help="answers stopped, and tabs closed (default: 10)")
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"of history for Stop (default: {MESSAGES})")
    parser.add_argument("--preset", default=DEFAULT_PRESET, help="preset that the workbench starts with")
    parser.add_argument("--model", help="another model than the preset's")


def run(args: argparse.Namespace) -> Report:
    """Measure everything, one after the other.

    Raises:
        ConfigurationError: an option is out of range.
        BackendUnavailableError: no Chromium, or no playwright.
        EngineError: the workbench did not come up, or did not free its blocks.
    """
    if args.seconds < 2 or args.trials < 1 or args.messages < 0:
        raise ConfigurationError("--seconds must be at least 2, --trials at least 1, --messages at least 0")
    select_preset(load_presets(), args.preset)
    with chromium() as browser:
        version = browser.version
        log(f"recording a run of {args.preset}, then serving it without the engine")
        recorded_s = 2 * len(TABS) * args.seconds + RECORDED_AROUND_S
        with running(_played(args, recorded_s)) as url:
            loads = watch_tabs(browser, url, args.seconds)
        log("starting the workbench")
        with running(_workbench(args)) as url:
            stops_s = time_stops(browser, url, args.messages, args.trials)
            closes_s = time_closes(browser, url, args.trials)
    settings = {
        "seconds_watched": args.seconds,
        "trials": args.trials,
        "messages_of_history": args.messages,
        "window": "1440 x 900",
        "preset": args.preset,
        "model": args.model,
        "browser": f"Chromium {version}, no window, no graphics processor",
    }
    return Report(figures(loads, stops_s, closes_s), settings, describe_environment())


def _played(args: argparse.Namespace, seconds: float) -> list[str]:
    model = [args.model] if args.model else []
    return ["-m", "workbench.bench.page.played_app", args.preset, str(seconds), *model]


def _workbench(args: argparse.Namespace) -> list[str]:
    model = ["--model", args.model] if args.model else []
    return ["app.py", "--host", "127.0.0.1", "--port", "0", "--preset", args.preset, *model]


def watch_tabs(browser: Browser, url: str, seconds: float) -> dict[str, Load]:
    """Return what each tab costs while an answer streams beside eight requests."""
    loads = {}
    with chat_page.visitor(browser, url) as page:
        chat_page.ask(page, QUESTION)
        chat_page.wait_until_streaming(page)
        for name in TABS:
            chat_page.show_tab(page, name)
            page.wait_for_timeout(SETTLE_MS)
            load = loads[name] = chat_page.watch(page, seconds)
            log(
                f"{name}: {load.fps_p50:.0f} fps, main thread {load.main_thread_fraction:.1%} "
                f"at {load.updates_per_s:.1f} updates/s"
            )
    if min(load.updates_per_s for load in loads.values()) < FEW_UPDATES:
        log("the recorded engine was too slow for ten frames a second: leave the machine alone, and run this again")
    return loads


def time_stops(browser: Browser, url: str, num_messages: int, trials: int) -> list[float]:
    """Return the seconds from a click on Stop to the end of the answer on the page, below a long conversation."""
    with chat_page.visitor(browser, url) as page:
        chat_page.ignore_end_of_text(page)
        for number in range(1, num_messages // 2 + 1):
            chat_page.answer_shortly(page, number)
        log(f"a conversation of {num_messages} messages is there")
        took_s = []
        for trial in range(trials):
            if trial:  # in the place of the stopped answer: the conversation stays as long as it is
                page.click("#wb-regenerate")
            else:
                chat_page.ask(page, QUESTION)
            chat_page.wait_until_streaming(page)
            page.wait_for_timeout(STREAMED_MS)
            took_s.append(chat_page.stop(page))
            log(f"stop {trial + 1}/{trials}: {1000 * took_s[-1]:.0f} ms")
    return took_s


def time_closes(browser: Browser, url: str, trials: int) -> list[float]:
    """Return the seconds from closing a tab in the middle of an answer until no block is in use."""
    took_s = []
    with chat_page.visitor(browser, url) as first, ThreadPoolExecutor(1) as watcher:
        for trial in range(trials):
            page: Page = chat_page.open_page(first.context.new_page(), url)
            chat_page.ignore_end_of_text(page)
            chat_page.ask(page, QUESTION)
            chat_page.wait_until_streaming(page)
            page.wait_for_timeout(STREAMED_MS)
            closed_s, freed = _close(page, watcher, url)
            took_s.append(freed - closed_s)
            log(f"close {trial + 1}/{trials}: {1000 * took_s[-1]:.0f} ms")
    return took_s


def _close(page: Page, watcher: ThreadPoolExecutor, url: str) -> tuple[float, float]:
    """Close a tab. Return when that was asked for, and when its blocks were free, in seconds of `perf_counter`."""
    began_s = time.perf_counter()
    freed = watcher.submit(wait_until_free, url)
    page.close()
    return began_s, freed.result()


def figures(loads: Mapping[str, Load], stops_s: Sequence[float], closes_s: Sequence[float]) -> dict[str, float]:
    """Return the worst tab's frame rate and load, each tab's own, and percentiles over the trials."""
    found: dict[str, float] = {
        "map_fps_p50": min(load.fps_p50 for load in loads.values()),
        "main_thread_fraction": max(load.main_thread_fraction for load in loads.values()),
        "main_thread_cpu_fraction": max(load.main_thread_cpu_fraction for load in loads.values()),
        "stop_p50_ms": 1000 * float(np.percentile(stops_s, 50)),
        "stop_p95_ms": 1000 * float(np.percentile(stops_s, 95)),
        "tab_close_to_free_p50_ms": 1000 * float(np.percentile(closes_s, 50)),
        "tab_close_to_free_p95_ms": 1000 * float(np.percentile(closes_s, 95)),
    }
    for name, load in loads.items():
        tab = name.lower()
        found |= {
            f"{tab}_fps_p50": load.fps_p50,
            f"{tab}_fps_min": min(load.frames_per_s),
            f"{tab}_main_thread_fraction": load.main_thread_fraction,
            f"{tab}_main_thread_cpu_fraction": load.main_thread_cpu_fraction,
            f"{tab}_script_fraction": load.script_fraction,
            f"{tab}_updates_per_s": load.updates_per_s,
        }
    return found
