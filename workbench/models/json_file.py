"""JSON files of a model's directory, with one clear error for every way they can be broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.errors import ModelLoadError


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ModelLoadError: missing, unreadable, or something else than an object; names directory, file and remedy.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelLoadError(
            f"cannot load {path.parent.name}: {path.name} cannot be read ({reason}): fetch the model again"
        ) from error
    except ValueError as error:  # both bad UTF-8 and bad JSON
        raise ModelLoadError(
            f"cannot load {path.parent.name}: {path.name} is not valid JSON ({error}): fetch it again"
        ) from error
    if not isinstance(content, dict):
        raise ModelLoadError(
            f"cannot load {path.parent.name}: {path.name} holds {type(content).__name__}, not an object: fetch it again"
        )
    return content
