from __future__ import annotations

import pytest

from workbench.models.gguf_file import GGUFFile
from workbench.models.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def default_tokenizer(default_model_path) -> Tokenizer:
    """The default model's tokenizer, read without its weights."""
    return Tokenizer(GGUFFile(default_model_path).metadata)
