"""The page's benchmark: its figures, the recording that it serves, and one short run of all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import find_chromium as find_for_tests
from tests.models.tiny_gguf import write_tiny_gguf
from workbench.bench.page.chat_page import Load
from workbench.bench.page.command import figures
from workbench.bench.page.recording import CHAT_ID, NUM_BACKGROUND, PlayedService, Recording, record
from workbench.bench.report import ROOT
from workbench.config import EngineConfig, read_environment
from workbench.engine.messages import Event, RequestFinished, TokenEvent
from workbench.engine.service import EngineService
from workbench.errors import EngineError
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import BlockStatus, FinishReason, StepRecord

PARAMS = SamplingParams(temperature=0)
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path, max_model_len=16_000)
    return path


@pytest.fixture(scope="module")
def recording(model: Path) -> Iterator[Recording]:
    service = EngineService(EngineConfig(model=str(model), num_blocks=1024))
    service.start()
    service.wait_ready(100)
    yield record(service, 1.0)
    service.shutdown()


def test_figures_name_the_worst_tab_and_percentiles_of_the_trials():
    loads = {"Chat": Load((60, 58, 40), 0.2, 0.15, 0.1, 10.0), "Blocks": Load((50, 52, 54), 0.1, 0.08, 0.05, 9.0)}

    assert figures(loads, [0.1] * 20 + [0.9], [0.2, 0.4, 0.6]) == pytest.approx(
        {
            "map_fps_p50": 52,
            "main_thread_fraction": 0.2,
            "main_thread_cpu_fraction": 0.15,
            "stop_p50_ms": 100,
            "stop_p95_ms": 100,
            "tab_close_to_free_p50_ms": 400,
            "tab_close_to_free_p95_ms": 580,
            "chat_fps_p50": 58,
            "chat_fps_min": 40,
            "chat_main_thread_fraction": 0.2,
            "chat_main_thread_cpu_fraction": 0.15,
            "chat_script_fraction": 0.1,
            "chat_updates_per_s": 10,
            "blocks_fps_p50": 52,
            "blocks_fps_min": 50,
            "blocks_main_thread_fraction": 0.1,
            "blocks_main_thread_cpu_fraction": 0.08,
            "blocks_script_fraction": 0.05,
            "blocks_updates_per_s": 9,
        }
    )


def test_recording_holds_a_chat_that_streams_beside_eight_requests_and_ends_with_every_block_free(
    recording: Recording,
):
    steps = [moment for _, moment in recording.moments if isinstance(moment, StepRecord)]
    events = [moment for _, moment in recording.moments if not isinstance(moment, StepRecord)]
    blocks = {change.block_id: change for step in steps for change in step.block_changes}

    assert max(step.num_running + step.num_waiting for step in steps) == NUM_BACKGROUND + 1
    assert {event.request_id for event in events} == {CHAT_ID}
    assert sum(isinstance(event, TokenEvent) for event in events) > 1
    assert events[-1].finish_reason is FinishReason.ABORT  # type: ignore[union-attr]
    assert BlockStatus.ACTIVE not in {block.status for block in blocks.values()}
    assert [at_s for at_s, _ in recording.moments] == sorted(at_s for at_s, _ in recording.moments)


def play(service: PlayedService) -> list[Event]:
    """Send a message and return the events once the last has come."""
    events: list[Event] = []
    ended = threading.Event()

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, RequestFinished):
            ended.set()

    service.submit("hello", PARAMS, on_event)
    assert ended.wait(DEADLINE_S)
    wait_until_idle(service)
    return events


def wait_until_idle(service: PlayedService) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while service.num_open_requests:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_recording_is_played_with_its_tokens_and_steps_and_a_second_time_after_the_first(recording: Recording):
    service = PlayedService(recording)

    first, second = play(service), play(service)

    recorded = [moment for _, moment in recording.moments if not isinstance(moment, StepRecord)]
    assert first == second == recorded
    steps = service.recorder.since(-1)
    assert [step.step_id for step in steps] == list(range(1, 2 * recording.num_steps + 1))
    assert [step.started_s for step in steps] == sorted(step.started_s for step in steps)


def test_played_answer_ends_with_abort_when_it_is_stopped_and_leaves_the_pool_as_recorded(recording: Recording):
    service = PlayedService(recording)
    events: list[Event] = []
    service.submit("hello", PARAMS, events.append)
    with pytest.raises(EngineError, match="one message at a time"):
        service.submit("hello", PARAMS, events.append)

    service.abort(CHAT_ID)
    wait_until_idle(service)

    assert isinstance(events[-1], RequestFinished)
    assert events[-1].finish_reason is FinishReason.ABORT
    assert sum(isinstance(event, RequestFinished) for event in events) == 1
    assert len(events) < sum(not isinstance(moment, StepRecord) for _, moment in recording.moments)
    assert service.recorder.latest is not None
    assert service.recorder.latest.step_id == recording.num_steps


def bench_page(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "workbench.bench", "page", *arguments, "--json"]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=400, check=False
    )


def test_page_without_a_browser_is_one_error_with_the_remedy():
    ran = bench_page(WORKBENCH_CHROMIUM="/nowhere/chromium")

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        "page: no Chromium found: WORKBENCH_CHROMIUM=/nowhere/chromium is no program. Install one "
        "(on Debian: apt-get install chromium), or give its path in WORKBENCH_CHROMIUM\n"
    )


@pytest.mark.browser
@pytest.mark.timeout(400)
def test_page_measures_all_its_figures(model: Path):
    browser = find_for_tests()
    if browser is None and not read_environment().require_browser:
        pytest.skip("no Chromium found: install chromium-headless-shell, or give a path in WORKBENCH_CHROMIUM")

    options = ("--seconds", "2", "--trials", "1", "--messages", "2", "--model", str(model))
    ran = bench_page(*options, **({} if browser is None else {"WORKBENCH_CHROMIUM": browser}))

    assert ran.returncode == 0, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout)
    found = report["figures"]
    assert {"map_fps_p50", "main_thread_fraction", "stop_p95_ms", "tab_close_to_free_p95_ms"} <= found.keys()
    assert all(value > 0 for value in found.values())
    assert report["settings"]["messages_of_history"] == 2
