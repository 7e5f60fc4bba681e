"""Which weights a model has: what was made for one model must not be used with another."""

from __future__ import annotations

import hashlib
from pathlib import Path


def model_sha256(path: Path) -> str:
    """Return the SHA-256 of a model's file; for a directory, of the names and digests of its safetensors files."""
    if not path.is_dir():
        return _sha256_of(path)
    lines = (f"{file.name} {_sha256_of(file)}\n" for file in sorted(path.glob("*.safetensors")))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _sha256_of(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
