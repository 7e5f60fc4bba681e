"""Which machine live figures were measured on, in a few words."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def describe_machine(cpu_info: Path = CPU_INFO) -> str:
    """Return for instance "AMD EPYC 7B13, 2 cores"; the architecture where the model is not told."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", cpu_info.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:  # no Linux
        found = None
    name = (
        re.sub(r"\((?:R|TM)\)|\s+(?:CPU|Processor)\b.*$|\s*@.*$", "", found[1]).strip() if found else platform.machine()
    )
    return f"{name}, {cores} core{'' if cores == 1 else 's'}"
