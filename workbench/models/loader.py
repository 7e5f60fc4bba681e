"""From a model's name to a model that can run: weights, configuration, tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from kernels.ops import Ops
from workbench.config import DEFAULT_MODEL
from workbench.models.default_model import resolve_model_path
from workbench.models.directory_loader import load_directory
from workbench.models.gguf_loader import load_gguf
from workbench.models.loaded import LoadedModel, LoadProgress

__all__ = ["LoadProgress", "LoadedModel", "load_model"]


def load_model(name_or_path: str, ops: Ops, progress: Callable[[LoadProgress], None]) -> LoadedModel:
    """Load the packaged model by name, a GGUF file or a directory by path, or a hub's model by its id.

    progress: called in this thread, a few hundred times.

    Raises:
        ModelLoadError: missing, truncated, corrupt or of an unknown kind; names the file and the remedy.
    """
    path = resolve_model_path(name_or_path)
    if path.is_dir():
        # The hub's cache keeps a model in a directory named by its commit, which says nothing to people.
        name = path.resolve().name if Path(name_or_path).expanduser().exists() else name_or_path
        return load_directory(path, name, ops, progress)
    name = DEFAULT_MODEL if name_or_path == DEFAULT_MODEL else _model_name(path)
    return load_gguf(path, name, ops, progress)


def _model_name(path: Path) -> str:
    """Return the file's name without its ending and quantization: `tiny.Q4_K_M.gguf` is `tiny`."""
    return re.sub(r"[.-](I?Q\d\w*|B?F\d+)$", "", path.stem, flags=re.IGNORECASE)
