"""A real Chromium, and servers for it. Without a browser the tests skip, or fail where one is required."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright
from starlette.types import ASGIApp

from tests.browser.chat_page import LOADING_S, preset, running, visit, wait_until
from tests.browser.running_server import DEADLINE_MS, RunningServer
from tests.models.tiny_gguf import write_tiny_gguf
from workbench.config import EngineConfig, read_environment
from workbench.engine.service import EngineService
from workbench.telemetry.records import Decision, StepRecord

FAILURES = Path(__file__).parent / "failures"
CANDIDATES = ("chromium-headless-shell", "/usr/bin/chromium", "/usr/bin/chromium-browser", "google-chrome")
"""The shell first: the same engine without a window's own pages, which cost a fifth of the time."""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str | None:
    """Path of a Chromium, or None."""
    given = read_environment().browser
    found = (shutil.which(candidate) for candidate in ((given,) if given else CANDIDATES))
    return next((path for path in found if path), None)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One Chromium for this folder. Not for the session: Playwright keeps an event loop running in the thread."""
    path = find_chromium()
    if path is None:
        reason = "no Chromium found: install chromium-headless-shell, or give a path in WORKBENCH_CHROMIUM"
        if read_environment().require_browser:
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield chromium
        chromium.close()


class WatchedPage:
    """A page that remembers what no test may cause: console errors and requests to another host."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.expects_a_lost_server = False
        """Failed requests are then no errors; exceptions of scripts still are."""
        page.set_default_timeout(DEADLINE_MS)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        is_network = "Failed to load resource" in message.text or "WebSocket connection" in message.text
        if message.type == "error" and not (is_network and self.expects_a_lost_server):
            self.errors.append(message.text)

    def _on_request(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme in ("http", "https", "ws", "wss") and url.hostname != "127.0.0.1":
            self.foreign.append(request.url)


@pytest.fixture
def open_page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., WatchedPage]]:
    """`open_page(width=..., **context options)` → a `WatchedPage`; checked for errors at the end.

    The guided tour is put aside, except for a `first_visit`.
    """
    opened: list[WatchedPage] = []

    def open_one(
        width: int = 1440, init_script: str | None = None, first_visit: bool = False, **options: object
    ) -> WatchedPage:
        options = {"reduced_motion": "reduce", "color_scheme": "dark", **options}
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)  # type: ignore[arg-type]
        if not first_visit:
            context.add_init_script("try { localStorage.setItem('wb-guide', 'done'); } catch { /* no page yet */ }")
        if init_script is not None:
            context.add_init_script(init_script)
        opened.append(WatchedPage(context.new_page()))
        return opened[-1]

    yield open_one
    has_failed = request.node.stash.get(CALL_FAILED, False)
    for number, watched in enumerate(opened):
        if has_failed:
            FAILURES.mkdir(exist_ok=True)
            watched.page.screenshot(
                path=FAILURES / f"{request.node.name.replace('/', '-')}-{number}.png", full_page=True
            )
        watched.page.context.close()
    assert [error for watched in opened for error in watched.errors] == []
    assert [url for watched in opened for url in watched.foreign] == []


CALL_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.when == "call":
        item.stash[CALL_FAILED] = report.failed
    return report  # type: ignore[return-value]


@pytest.fixture
def serve() -> Iterator[Callable[..., RunningServer]]:
    """`serve(app, port=0)` → a `RunningServer`, stopped at the end of the test."""
    servers: list[RunningServer] = []

    def start(app: ASGIApp, port: int = 0) -> RunningServer:
        servers.append(RunningServer(app, port))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path, num_layers=1, hidden_size=32, intermediate_size=32, num_heads=1, num_kv_heads=1)
    return path


@pytest.fixture
def service(tiny_model: Path) -> Iterator[EngineService]:
    """A real engine on a tiny random model; 80 blocks, so that a dozen requests fight for them."""
    config = EngineConfig(
        model=str(tiny_model), num_blocks=80, max_num_batched_tokens=64, max_num_seqs=16, check_integrity=True
    )
    engine = EngineService(config)
    engine.start()
    engine.wait_ready(LOADING_S)
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineService, RunningServer]]:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path, max_model_len=8192)
    with running(preset(str(path))) as (service, server):
        service.wait_ready(LOADING_S)
        yield service, server


@pytest.fixture
def chat(
    tiny: tuple[EngineService, RunningServer], open_page: Callable[..., WatchedPage]
) -> Iterator[tuple[EngineService, Page]]:
    """A fresh page over the tiny engine; at the end nothing may be left in the engine."""
    service, server = tiny
    yield service, visit(open_page, server)
    wait_until(lambda: service.num_open_requests == 0)


@pytest.fixture(scope="module")
def timeline_run(tiny_model: Path) -> Iterator[tuple[EngineService, list[StepRecord]]]:
    """A real engine held after a run with preemptions, and its records."""
    from tests.browser.timeline_page import recorded_run  # it imports this file

    with recorded_run(tiny_model) as (service, records):
        assert any(e.decision is Decision.PREEMPTED for r in records for e in r.explanations)
        yield service, records


@pytest.fixture
def shown_run(
    timeline_run: tuple[EngineService, list[StepRecord]],
    serve: Callable[..., RunningServer],
    open_page: Callable[..., WatchedPage],
) -> tuple[Page, list[StepRecord]]:
    """The timeline's page over the run, with its whole history read."""
    from tests.browser.timeline_page import build_timeline_app, open_timeline, wait_for_history

    service, records = timeline_run
    page = open_page().page
    open_timeline(page, serve(build_timeline_app(service)).url)
    wait_for_history(page, records[-1].step_id)
    return page, records
