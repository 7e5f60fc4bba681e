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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from workbench.bench.timings import RequestTimes
from workbench.bench.workloads import WorkItem
from workbench.errors import EngineError

ROOT: Final = Path(__file__).resolve().parents[2]
# Our folder comes last on the path, so that it cannot hide a package of the peer's environment.
_BOOTSTRAP: Final = (
    "import runpy, sys; root, module = sys.argv[1:3]; del sys.argv[1:3]; sys.path.append(root); "
    "runpy.run_module(module, run_name='__main__')"
)


class PeerProcess:
    """A peer's worker: started, loaded, and run once for each call of `run`."""

    def __init__(self, name: str, arguments: Sequence[str], interpreter: str = sys.executable) -> None:
        """Start `workbench.bench.peer_workers.<name>_worker` and wait until its model is loaded.

        Raises:
            EngineError: it ended instead; what it said stands on standard error.
        """
        self.name = name
        module = f"workbench.bench.peer_workers.{name}_worker"
        self._process = subprocess.Popen(
            [interpreter, "-c", _BOOTSTRAP, str(ROOT), module, *arguments],
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

    def close(self) -> None:
        """End the worker."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise EngineError(f"the worker of {self.name} ended with status {self._process.returncode}")
        answer: dict[str, Any] = json.loads(line)
        return answer
