"""The make targets' set-up: clear refusals, and nothing to do the second time."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STAMPS = (".created", ".requirements", ".requirements-dev", ".model")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def run_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30)


def write_python(folder: Path, body: str) -> Path:
    """Write a stand-in for the Python interpreter."""
    script = folder / "python-stand-in"
    script.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    script.chmod(0o755)
    return script


def test_make_says_what_to_install_when_python_is_missing(tmp_path):
    ran = run_make("run", f"VENV={tmp_path}/venv", "PYTHON=python-that-does-not-exist")

    assert ran.returncode == 2
    assert "python-that-does-not-exist was not found: install Python 3.11 or newer" in ran.stderr


def test_make_names_the_version_when_python_is_too_old(tmp_path):
    python = write_python(tmp_path, 'if [ "$1" = --version ]; then echo Python 3.9.2; else exit 1; fi')

    ran = run_make("run", f"VENV={tmp_path}/venv", f"PYTHON={python}")

    assert ran.returncode == 2
    assert "Python 3.9.2 is too old: Python 3.11 or newer is needed" in ran.stderr


def test_make_says_what_to_install_when_venv_is_missing(tmp_path):
    python = write_python(tmp_path, 'case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac')

    ran = run_make("test", f"VENV={tmp_path}/venv", f"PYTHON={python}")

    assert ran.returncode == 2
    assert "install its venv module (on Debian: apt-get install python3-venv)" in ran.stderr


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("run", ["bin/python app.py"]),
        ("test", ["bin/python -m pytest"]),
        ("check", ["ruff check", "ruff format", "mypy"]),
    ],
)
def test_make_installs_nothing_when_the_stamps_are_fresh(tmp_path, target: str, expected: list[str]):
    for stamp in STAMPS:
        (tmp_path / stamp).touch()

    ran = run_make("--dry-run", target, f"VENV={tmp_path}")

    assert ran.returncode == 0
    assert " -m pip " not in ran.stdout
    assert [command for command in expected if command not in ran.stdout] == []


def test_make_run_passes_its_variables_on(tmp_path):
    for stamp in STAMPS:
        (tmp_path / stamp).touch()

    ran = run_make(
        "--dry-run", "run", f"VENV={tmp_path}", "PORT=8000", "HOST=::1", "PRESET=tiny-memory", "MODEL=a b.gguf"
    )

    for option in ('--port "8000"', '--host "::1"', '--preset "tiny-memory"', '--model "a b.gguf"'):
        assert option in ran.stdout
