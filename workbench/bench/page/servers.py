"""The workbench in a process of its own, on a free port of this machine."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from workbench.bench.report import ROOT
from workbench.errors import EngineError
from workbench.telemetry.frames import Frame, decode
from workbench.telemetry.records import BlockStatus

START_S: Final = 300.0
"""The model may have to be loaded, and its kernels compiled."""
STOP_S: Final = 20.0


@contextmanager
def running(command: Sequence[str]) -> Iterator[str]:
    """Run `python COMMAND…` until the block ends; yield the address that it prints once the engine is ready.

    Raises:
        EngineError: it ended, or was not ready in time; what it said stands on standard error.
    """
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        url = _address(process)
        _wait_ready(process, url)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        if found:
            return found.group()
    raise EngineError(f"the workbench ended with status {process.wait()} before it listened: see above")


def _wait_ready(process: subprocess.Popen[str], url: str) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except OSError:  # it listens, but does not serve yet
            pass
        finally:
            connection.close()
        if process.poll() is not None:
            raise EngineError(f"the workbench ended with status {process.returncode} while it loaded: see above")
        if time.monotonic() > deadline_s:
            raise EngineError(f"the workbench was not ready after {START_S:.0f} s")
        time.sleep(0.1)


def wait_until_free(url: str, timeout_s: float = 20.0, interval_s: float = 0.005) -> float:
    """Return the time (`perf_counter`) at which no request was open and no block in use.

    Raises:
        EngineError: that did not come.
    """
    deadline_s = time.perf_counter() + timeout_s
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout_s)
    try:
        while True:
            frame = _frame(connection)
            now_s = time.perf_counter()
            figures = frame.body["figures"]
            num_active = int((frame.blocks["status"] == BlockStatus.ACTIVE).sum())
            if num_active == 0 and figures["running"] == figures["waiting"] == 0:
                return now_s
            if now_s > deadline_s:
                raise EngineError(f"{num_active} blocks are still in use {timeout_s:.0f} s later")
            time.sleep(interval_s)
    finally:
        connection.close()


def _frame(connection: http.client.HTTPConnection) -> Frame:
    connection.request("GET", "/live/frame")
    answer = connection.getresponse()
    data = answer.read()
    if answer.status != http.HTTPStatus.OK:
        raise EngineError(f"the live feed answered {answer.status}")
    return decode(data)
