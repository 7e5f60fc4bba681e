"""Set up for the whole suite: the same process-wide switches that every entry point makes.

`make test` runs three processes (pytest-xdist): browser tests wait much of their time. Each file's tests stay
together, so that they share the models they load; so do the files that ask transformers, and the browser tests, in
two halves: with more Chromiums than that, pages wait for each other. What takes long is begun first, so that all
processes end together.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from kernels.ops import load_backend
from tests.models.tiny_gguf import write_tiny_gguf
from workbench.bench.reference import ReferenceModel
from workbench.config import DEFAULT_MODEL, prepare_process
from workbench.models.default_model import resolve_model_path

prepare_process()
settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")

BROWSER_TESTS = Path(__file__).parent / "browser"
CHAT_TESTS = tuple(
    f"tests/browser/test_{name}.py"
    for name in (
        *("access", "answers", "chat", "chat_more", "engine_restart", "guide", "language", "load_buttons"),
        *("memory_engine", "points", "reading_order", "tokens"),
    )
)
"""One half of the browser tests."""
ORACLE_TESTS = (
    "tests/test_exactness.py",
    "tests/test_logprobs.py",
    "tests/models/test_reference_logits.py",
    "tests/engine/test_beams_on_the_model.py",
)
"""They share `reference_model`, which takes half a minute to load."""
BEGIN_WITH = (
    *CHAT_TESTS,
    "tests/browser/",
    *ORACLE_TESTS,
    *("tests/test_presets.py", "tests/test_config.py"),  # short: each process is given two groups at once
    "tests/engine/test_speculative_distribution.py",
    "tests/bench/test_page.py",
    "tests/test_app.py",
    "tests/engine/test_memory_on_the_model.py",
    "tests/kernels/test_ops.py",
    "tests/engine/test_bitwise.py",
    "tests/engine/test_speculative_engine_distribution.py",
)
"""What takes more than twenty seconds, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in tests/browser, so that `-m "not browser"` leaves all of it out; begin with what takes long."""
    items.sort(key=lambda item: _rank(item.nodeid))
    for item in items:
        if item.path.is_relative_to(BROWSER_TESTS):
            item.add_marker(pytest.mark.browser)


def _rank(nodeid: str) -> int:
    """Place in `BEGIN_WITH`, or behind it."""
    return next((place for place, path in enumerate(BEGIN_WITH) if nodeid.startswith(path)), len(BEGIN_WITH))


class TogetherScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives whole files to the processes, and as one each: the oracle's, and both halves of the browser tests."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path.startswith("tests/browser/"):
            return "chat" if path in CHAT_TESTS else "browser"
        return "oracle" if path in ORACLE_TESTS else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> TogetherScheduling:
    """Say which tests stay together, in which order. (The marks of `--dist loadgroup` go unread with pytest 9.2.)"""
    config.option.loadscopereorder = False  # it would begin with the most tests, which do not take the longest
    return TogetherScheduling(config, log)


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
