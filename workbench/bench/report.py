"""What every bench command hands back, and on what it was measured."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

ROOT: Final = Path(__file__).resolve().parents[2]
LIBRARIES: Final = ("torch", "numba", "numpy", "transformers", "gguf", "gradio")


@dataclass(frozen=True)
class Report:
    """One measurement: figures, and everything needed to understand and repeat it."""

    figures: Mapping[str, float | None]
    """Flat names that end in their unit (`ttft_p50_ms`) → numbers; None where the settings say why there is none."""
    settings: Mapping[str, Any]
    """What was run: workload, engine configuration, seeds."""
    environment: Mapping[str, Any]
    """Where: see `describe_environment`."""
    failure: str | None = None
    """Why the command must exit with an error although it ran to its end."""

    def to_json(self) -> str:
        """Return the one JSON object that `--json` prints."""
        parts = {"figures": self.figures, "settings": self.settings, "environment": self.environment}
        return json.dumps(parts, ensure_ascii=False, allow_nan=False)

    def to_text(self) -> str:
        """Return the same for people, one value a line."""
        lines = [f"{name:<34} {_readable(value):>12}" for name, value in self.figures.items()]
        for title in ("settings", "environment"):
            lines += ["", f"{title}:"]
            lines += [f"  {name:<32} {value}" for name, value in getattr(self, title).items()]
        return "\n".join(lines)


def _readable(value: float | None) -> str:
    if value is None:
        return "—"
    return str(value) if isinstance(value, int) else f"{value:,.2f}"


def describe_environment() -> dict[str, Any]:
    """Return processor, cores, memory, versions, commit and date of this run."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
        "python": platform.python_version(),
        **{name: _version(name) for name in LIBRARIES},
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _cpu_model() -> str:
    """Return the processor's name as Linux gives it; other systems only know its family."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Return the checkout's commit, marked when files differ from it."""

    def git(*arguments: str) -> str:
        ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20)
        return ran.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (" with local changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown: not a git checkout"
