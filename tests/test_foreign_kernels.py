"""The PyPI package `kernels` beside us is noticed; faked by its metadata alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from workbench.foreign_kernels import foreign_kernels_warning

ROOT = Path(__file__).parent.parent


def install_fake_kernels(folder: Path) -> None:
    info = folder / "kernels-0.18.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n", encoding="utf-8")


def test_foreign_kernels_are_named_with_the_remedy_when_installed(tmp_path, monkeypatch):
    install_fake_kernels(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    warning = foreign_kernels_warning()

    assert warning is not None
    assert "kernels 0.18.2 is installed" in warning
    assert warning.endswith(f"Remove it: {sys.executable} -m pip uninstall kernels")


def test_foreign_kernels_warning_is_none_when_absent():
    assert foreign_kernels_warning() is None


def test_transformers_really_breaks_when_foreign_kernels_are_installed(tmp_path):
    """The reason for the warning. Should transformers mend this one day, drop the check."""
    install_fake_kernels(tmp_path)
    script = f"import sys; sys.path.append({str(tmp_path)!r}); from transformers import LlamaForCausalLM"

    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100)

    assert ran.returncode != 0
    assert "cannot import name" in ran.stderr
    assert "from 'kernels'" in ran.stderr
