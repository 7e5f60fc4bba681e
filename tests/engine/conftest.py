from __future__ import annotations

import pytest

from workbench.config import EngineConfig
from workbench.engine.service import EngineService
from workbench.models.gguf_file import GGUFFile
from workbench.models.tokenizer import Tokenizer

READY_S = 60


@pytest.fixture(scope="session")
def default_tokenizer(default_model_path) -> Tokenizer:
    """The default model's tokenizer, read without its weights."""
    return Tokenizer(GGUFFile(default_model_path).metadata)


@pytest.fixture
def make_service(tiny_model_path):
    """Start services with settings of one's own; all are shut down at the end."""
    services = []

    def make(**settings):
        values = {"model": str(tiny_model_path), "num_blocks": 32, "check_integrity": True, **settings}
        service = EngineService(EngineConfig(**values))
        services.append(service)
        service.start()
        service.wait_ready(READY_S)
        return service

    yield make
    for service in services:
        service.shutdown()
