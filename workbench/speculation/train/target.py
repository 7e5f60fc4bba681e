"""The model that a head is trained for."""

from __future__ import annotations

from workbench.config import EngineConfig
from workbench.engine.loading import choose_backend, set_threads
from workbench.models.loader import LoadedModel, load_model


def load_target(name: str) -> LoadedModel:
    """Load a model for the calling thread, on all cores.

    Raises:
        ModelLoadError: there is no such model, or its file is damaged.
    """
    config = EngineConfig(model=name)
    ops, _ = choose_backend(config)
    set_threads(ops, config)
    return load_model(name, ops, lambda _: None)
