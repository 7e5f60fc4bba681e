"""Which machine live figures were measured on, in a few words."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from workbench.config import usable_cores

CPU_INFO = Path("/proc/cpuinfo")


def describe_machine(cpu_info: Path = CPU_INFO) -> str:
    """Return for instance "AMD EPYC 7B13, 2 cores"; the architecture where the model is not told."""
    cores = usable_cores()
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", cpu_info.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:  # no Linux
        found = None
    name = (
        re.sub(r"\((?:R|TM)\)|\s+(?:CPU|Processor)\b.*$|\s*@.*$", "", found[1]).strip() if found else platform.machine()
    )
    return f"{name}, {cores} core{'' if cores == 1 else 's'}"
