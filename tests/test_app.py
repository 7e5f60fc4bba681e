"""Starting and stopping: mistakes are told at once with the remedy, signals stop everything quickly."""

from __future__ import annotations

import os
import re
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

from tests.models.tiny_gguf import write_tiny_gguf
from tests.telemetry.test_history import random_run
from workbench.server.command_line import ENGINE_OPTIONS, build_parser
from workbench.telemetry.frames import decode
from workbench.telemetry.run_file import write_run

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = (
    *("--preset", "--list-presets", "--model", "--host", "--port", "--kernel-backend"),
    *("--replay", "--token", "--show-all-text"),
)
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
        (["--port", "0", "--replay", "/nowhere/run.gz"], {}, "cannot read /nowhere/run.gz: No such file or directory"),
        (["--port", "0", "--replay", "README.md"], {}, "README.md is damaged or no gzip file"),
        (["--port", "0", "--host", "0.0.0.0"], {}, "host 0.0.0.0 can be reached from other machines and no token is"),
        (["--port", "0", "--token", "short"], {}, "the token has 5 characters, at least 8 are needed"),
        (["--port", "0"], {"WORKBENCH_TOKEN": "short"}, "the token has 5 characters, at least 8 are needed"),
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
    monkeypatch.setenv("WORKBENCH_TOKEN", "from-the-environment")
    given = build_parser().parse_args(["--port", "2222"])
    assert given.token == "from-the-environment"
    assert (given.port, given.host, given.preset, given.model) == ("2222", "0.0.0.0", "tiny-memory", "a.gguf")


@contextmanager
def workbench(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The workbench as a process, once it listens, and its address."""
    command = [sys.executable, "app.py", "--port", "0", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(SOON_S, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert re.match(r"Workbench: http://(127|0)\.0\.0\.[01]:\d+ ", line)
            yield process, line.split()[1]
        finally:
            watchdog.cancel()
            process.kill()


def fetch(url: str) -> tuple[int, str]:
    """Status and text, also of an error; retried while nothing listens."""
    status, body = fetch_bytes(url)
    return status, body.decode()


def fetch_bytes(url: str, **headers: str) -> tuple[int, bytes]:
    """Status and body, also of an error; retried while nothing listens."""
    deadline = time.monotonic() + SOON_S
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SOON_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except urllib.error.URLError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_app_serves_the_page_and_stops_on_a_signal(tmp_path: Path, number: signal.Signals):
    write_tiny_gguf(tmp_path / "tiny.gguf")
    with workbench("--model", str(tmp_path / "tiny.gguf"), "--num-blocks", "64") as (process, address):
        assert "Inference Workbench" in fetch(address)[1]
        while fetch(f"{address}/health")[0] != 200:
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=SOON_S)
        assert process.returncode == 0
        assert "Traceback" not in errors


def test_app_stops_while_the_model_is_still_loading(tmp_path: Path):
    write_tiny_gguf(tmp_path / "tiny.gguf")
    with workbench("--model", str(tmp_path / "tiny.gguf"), "--num-blocks", "64") as (process, address):
        assert fetch(f"{address}/health")[0] in (200, 503)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SOON_S)
        assert process.returncode == 0
        assert "Traceback" not in errors


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved run of a hundred steps."""
    path = tmp_path_factory.mktemp("runs") / "run.jsonl.gz"
    base, records = random_run(100, seed=1).history.base_and_records()
    status = {"state": "ready", "model_name": "simulated", "dtype": "float32"}
    path.write_bytes(b"".join(write_run(base, records, status, "paged")))
    return path


def test_app_replays_a_saved_run_and_stops_on_a_signal(run_file: Path):
    with workbench("--replay", str(run_file)) as (process, address):
        assert "Inference Workbench" in fetch(address)[1]
        status, health = fetch(f"{address}/health")
        assert status == 200
        assert "Replay of run.jsonl.gz: nothing is computed" in health
        assert '"last":99' in fetch(f"{address}/history/range")[1]
        assert decode(fetch_bytes(f"{address}/history/frame?step=40")[1]).step_id == 40
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SOON_S)
        assert process.returncode == 0
        assert "Traceback" not in errors


def test_app_replays_without_the_libraries_that_compute(run_file: Path):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "import app\n"
        "from workbench.presets import load_presets\n"
        "from workbench.server.replay import open_replay\n"
        "presets = load_presets()\n"
        "app.build_app(open_replay(Path(sys.argv[1])), presets, presets['default'], True)\n"
        "print(sorted({'torch', 'numba', 'transformers'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(run_file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SOON_S)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


def test_app_asks_every_visitor_from_elsewhere_for_the_token(run_file: Path):
    token = "a-token-of-its-own"
    with workbench("--replay", str(run_file), "--host", "0.0.0.0", "--token", token) as (_, address):
        for path in ("", "/health", "/live/frame", "/history/range", "/config", "/gradio_api/info", "/theme.css"):
            assert fetch_bytes(address + path)[0] == 401, path
            status, _ = fetch_bytes(address + path, Authorization=f"Bearer {token}")
            assert status == 200, path
        assert "/?token=" in fetch(address)[1]
