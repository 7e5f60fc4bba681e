"""Starting and stopping: mistakes are told at once with the remedy, signals stop everything quickly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app import ENGINE_OPTIONS, build_parser
from tests.models.tiny_gguf import write_tiny_gguf

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = ("--preset", "--list-presets", "--model", "--host", "--port", "--kernel-backend")
SOON_S = 60.0
"""Deadline for a start: the kernels may have to be compiled first."""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "app.py", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SOON_S)


def test_app_help_lists_every_option():
    text = run("--help").stdout
    for option in (*OPTIONS, *(f"--{name.replace('_', '-')}" for name in ENGINE_OPTIONS)):
        assert option in text


def test_app_answers_help_without_loading_gradio_or_torch():
    code = (
        "import sys, app\n"
        "try: app.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'gradio', 'torch', 'numba', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=SOON_S)
    assert done.stdout.splitlines()[-1] == "[]"


def test_app_lists_its_presets():
    done = run("--list-presets")
    assert done.returncode == 0
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names[0] == "default"
    assert {"long-context", "many-users", "tiny-memory"} <= set(names)


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--preset", "huge"], {}, "preset 'huge' does not exist: choose one of default, "),
        ([], {"PRESET": "huge"}, "preset 'huge' does not exist"),
        (["--port", "70000"], {}, "port='70000' is not a port"),
        ([], {"PORT": "http"}, "port='http' is not a port"),
        (["--block-size", "7"], {}, "block_size=7 is not supported: choose one of 8, 16, 32"),
        (["--num-blocks", "0"], {}, "num_blocks=0 must be a whole number of at least 1"),
        (["--port", "0", "--model", "/nowhere/x.gguf"], {}, "there is no model file /nowhere/x.gguf"),
        (["--port", "0"], {"MODEL": "/nowhere/y.gguf"}, "there is no model file /nowhere/y.gguf"),
    ],
)
def test_app_tells_a_mistake_with_its_remedy_and_exits_with_2(
    arguments: list[str], environment: dict[str, str], words: str
):
    done = run(*arguments, **environment)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_app_says_that_a_port_is_taken_and_how_to_give_another():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("--port", str(port))
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_app_options_win_over_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PORT", "1111")
    monkeypatch.setenv("HOST", "0.0.0.0")
    monkeypatch.setenv("PRESET", "tiny-memory")
    monkeypatch.setenv("MODEL", "a.gguf")
    given = build_parser().parse_args(["--port", "2222"])
    assert (given.port, given.host, given.preset, given.model) == ("2222", "0.0.0.0", "tiny-memory", "a.gguf")


@contextmanager
def workbench(model: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The workbench as a process, once its page answers, and its address."""
    command = [sys.executable, "app.py", "--port", "0", "--model", str(model), "--num-blocks", "64"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(SOON_S, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Workbench: http://127.0.0.1:")
            yield process, line.split()[1]
        finally:
            watchdog.cancel()
            process.kill()


def fetch(url: str) -> tuple[int, str]:
    """Status and body, also of an error; retried while nothing listens."""
    deadline = time.monotonic() + SOON_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=SOON_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except urllib.error.URLError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_app_serves_the_page_and_stops_on_a_signal(tmp_path: Path, number: signal.Signals):
    write_tiny_gguf(tmp_path / "tiny.gguf")
    with workbench(tmp_path / "tiny.gguf") as (process, address):
        assert "Inference Workbench" in fetch(address)[1]
        while fetch(f"{address}/health")[0] != 200:
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=SOON_S)
        assert process.returncode == 0
        assert "Traceback" not in errors


def test_app_stops_while_the_model_is_still_loading(tmp_path: Path):
    write_tiny_gguf(tmp_path / "tiny.gguf")
    with workbench(tmp_path / "tiny.gguf") as (process, address):
        assert fetch(f"{address}/health")[0] in (200, 503)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SOON_S)
        assert process.returncode == 0
        assert "Traceback" not in errors
