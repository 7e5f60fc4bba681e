"""What the live figures were measured on, in words."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

_CPU_INFO: Final = Path("/proc/cpuinfo")
_VECTOR_FLAGS: Final = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("avx", "AVX"), ("asimd", "NEON"))


def describe_machine() -> str:
    """Return processor, cores and vector instructions: `AMD EPYC, 2 cores, AVX2`."""
    fields = _cpu_fields()
    name = fields.get("model name") or platform.processor() or platform.machine()
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    cores = os.cpu_count() or 1
    parts = [" ".join(name.split()), f"{cores} core{'s' if cores > 1 else ''}"]
    parts += [words for flag, words in _VECTOR_FLAGS if flag in flags][:1]
    return ", ".join(parts)


def _cpu_fields() -> dict[str, str]:
    """Return the first processor's fields; empty where the system does not tell them this way."""
    try:
        first, _, _ = _CPU_INFO.read_text(encoding="utf-8", errors="replace").partition("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
