"""Fetches a model from the Hugging Face hub. huggingface_hub is imported only when that is asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from workbench.errors import ModelLoadError

FILES: Final = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")
"""What loading reads; repositories often hold the same weights again in other formats."""

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(name: str) -> bool:
    """Return whether a name that is no path here could be `organization/model` on the hub."""
    return _HUB_ID.fullmatch(name) is not None and not name.endswith(".gguf")


def fetch_from_hub(hub_id: str) -> Path:
    """Return the directory of a hub's model, fetching what the local cache lacks.

    Raises:
        ModelLoadError: no network, no such model, or no access to it; the message says what to do.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(FILES)))
    except Exception as error:  # network, hub and file errors alike: the model is not here
        reason = str(error).strip().partition("\n")[0]
        raise ModelLoadError(
            f"there is no directory {hub_id}, and fetching the model of that name from the hub failed "
            f"({type(error).__name__}: {reason}): check the name and the network, or fetch it elsewhere "
            f"(`hf download {hub_id} --local-dir DIRECTORY`) and give the directory's path"
        ) from error
