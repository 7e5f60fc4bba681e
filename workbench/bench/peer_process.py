"""Drives a peer in a process of its own, in turns with the engine.

Two engines in one process share threads, allocator and interpreter lock, and slow each other down:
the OpenMP runtime stops spinning when one process holds more threads than the machine has cores,
which cost our engine a third of its speed. Apart, each runs as its users would run it, and the one
whose turn it is not only waits for input.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from workbench.bench.timings import RequestTimes
from workbench.bench.workloads import WorkItem
from workbench.errors import EngineError

ROOT: Final = Path(__file__).resolve().parents[2]
OWN_VARIABLES: Final = ("GOMP_SPINCOUNT", "NUMBA_THREADING_LAYER")
"""What `prepare_process` sets to suit our engine; a peer runs as if it had never been set."""
IDLE_CHECK_S: Final = 0.5
IDLE_FRACTION: Final = 0.05
"""Of one core: what a sleeping process may still use."""
IDLE_TIMEOUT_S: Final = 20.0
EXIT_TIMEOUT_S: Final = 20.0
# Our folder comes last on the path, so that it cannot hide a package of the peer's environment.
_BOOTSTRAP: Final = (
    "import runpy, sys; root, module = sys.argv[1:3]; del sys.argv[1:3]; sys.path.append(root); "
    "runpy.run_module(module, run_name='__main__')"
)


class PeerProcess:
    """A peer's worker: started, loaded, and run once for each call of `run`."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        interpreter: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `workbench.bench.peer_workers.<name>_worker` and wait until its model is loaded.

        environment: variables set for it, besides those of this process.

        Raises:
            EngineError: it ended instead; what it said stands on standard error.
        """
        self.name = name
        self.environment = dict(environment or {})
        module = f"workbench.bench.peer_workers.{name}_worker"
        variables = [part for key in OWN_VARIABLES for part in ("-u", key)]
        variables += [f"{key}={value}" for key, value in self.environment.items()]
        self._process = subprocess.Popen(
            ["env", *variables, interpreter, "-c", _BOOTSTRAP, str(ROOT), module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=tempfile.gettempdir(),
            text=True,
        )
        self.description: dict[str, str] = self._read()["ready"]

    def run(self, items: Sequence[WorkItem]) -> list[RequestTimes]:
        """Run all items, submitted at once, and return when their tokens came."""
        order = {
            "prompts": [list(item.prompt_token_ids) for item in items],
            "max_tokens": [item.max_tokens for item in items],
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        deliveries = self._read()["deliveries"]
        times = [RequestTimes(tuple((float(at), int(count)) for at, count in each)) for each in deliveries]
        for item, each in zip(items, times, strict=True):
            if each.num_tokens != item.max_tokens:
                raise EngineError(
                    f"{self.name} gave {each.num_tokens} tokens where {item.max_tokens} were asked for: "
                    "its figures would not compare"
                )
        return times

    def wait_until_idle(self) -> None:
        """Return once the worker and its children no longer use the processor.

        Some peers poll for a while after their last token (vLLM for a second); that must not count
        against whoever runs next.

        Raises:
            EngineError: it still does after 20 s.
        """
        deadline_s = time.monotonic() + IDLE_TIMEOUT_S
        before_s = self._cpu_seconds()
        while True:
            time.sleep(IDLE_CHECK_S)
            after_s = self._cpu_seconds()
            if after_s - before_s <= IDLE_FRACTION * IDLE_CHECK_S:
                return
            if time.monotonic() > deadline_s:
                raise EngineError(
                    f"{self.name} used {(after_s - before_s) / IDLE_CHECK_S:.2f} of a core while it was not its turn: "
                    "figures beside it would be wrong; set its threads to sleep when idle"
                )
            before_s = after_s

    def close(self) -> None:
        """End the worker and what it started."""
        assert self._process.stdin is not None
        family = self._family()
        self._process.stdin.close()
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for process in psutil.wait_procs(family, timeout=EXIT_TIMEOUT_S)[1]:
            process.kill()

    def _family(self) -> list[psutil.Process]:
        """The worker and its children, as far as they still run."""
        try:
            worker = psutil.Process(self._process.pid)
            return [worker, *worker.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _cpu_seconds(self) -> float:
        """Processor time that the worker and its children have used."""
        total_s = 0.0
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total_s += times.user + times.system
        return total_s

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise EngineError(f"the worker of {self.name} ended with status {self._process.returncode}")
        answer: dict[str, Any] = json.loads(line)
        return answer
