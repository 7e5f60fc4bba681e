"""Set up for the whole suite: the same process-wide switches that every entry point makes.

`make test` runs two processes (pytest-xdist). Each file's tests stay together, so that they share the models
they load, and all browser tests are one process's: two pages that are drawn at once wait for each other.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import settings

from kernels.ops import load_backend
from tests.models.tiny_gguf import write_tiny_gguf
from workbench.bench.reference import ReferenceModel
from workbench.config import DEFAULT_MODEL, prepare_process
from workbench.models.default_model import resolve_model_path

prepare_process()
settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")

BROWSER_TESTS = Path(__file__).parent / "browser"


@pytest.hookimpl(tryfirst=True)  # pytest-xdist, too, reads these marks when the tests are collected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in tests/browser, so that `-m "not browser"` leaves all of it out; name what stays together."""
    for item in items:
        is_browser = item.path.is_relative_to(BROWSER_TESTS)
        if is_browser:
            item.add_marker(pytest.mark.browser)
        item.add_marker(pytest.mark.xdist_group("browser" if is_browser else str(item.path)))


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file; `make test` installs its package, so its absence is an error."""
    return resolve_model_path(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def reference_model(default_model_path: Path) -> ReferenceModel:
    """transformers on the default model: the oracle. Loading it takes about ten seconds."""
    return ReferenceModel(default_model_path)


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama model of a few hundred kilobytes, for tests that need an engine but not its answers."""
    # Compiling takes a while the first time; no test's deadline should pay for it. In a thread of its own,
    # since OpenMP gives every thread that ran kernels a team, and spins less once there are many.
    warming = threading.Thread(target=lambda: load_backend("cpu").warm_up())
    warming.start()
    warming.join()
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gguf(path)
    return path
