"""What a machine can do, as the yardstick of kernels: bytes read and float32 operations per second."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.bench.report import ROOT
from workbench.errors import EngineError


@dataclass(frozen=True)
class Machine:
    """Rates of the whole machine, all threads together."""

    bandwidth_bytes_per_s: float
    """Reading memory that lies in no cache."""
    gemm_flop_per_s: float
    """Multiplying large square float32 matrices with torch."""

    def floor_s(self, num_bytes: float, flops: float) -> float:
        """Return the least time in which so many bytes are read and operations done."""
        return max(num_bytes / self.bandwidth_bytes_per_s, flops / self.gemm_flop_per_s)


def best_of(probes: Sequence[Machine]) -> Machine:
    """Return the best rates seen: whatever was slower had been disturbed."""
    return Machine(max(each.bandwidth_bytes_per_s for each in probes), max(each.gemm_flop_per_s for each in probes))


def probe_apart(num_threads: int) -> Machine:
    """Measure in a process of its own, for processes in which another thread runs the kernels.

    libgomp stops spinning in a process that holds more OpenMP threads than there are cores, and two
    threads that run parallel regions hold a team each: probing beside the engine would slow it for good.

    Raises:
        EngineError: it failed; the cause stands on standard error.
    """
    command = [sys.executable, "-m", "workbench.bench.kernels.probe", str(num_threads)]
    ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode != 0:
        raise EngineError(f"measuring the machine ended with status {ran.returncode}: see above")
    return Machine(**json.loads(ran.stdout))
