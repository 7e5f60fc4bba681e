"""Set up for tests that run models."""

from __future__ import annotations

import pytest

from kernels.ops import load_backend


@pytest.fixture(scope="session")
def compiled_kernels() -> None:
    """Compiling takes most of a minute the first time; no test's deadline should pay for it."""
    load_backend("cpu").warm_up()
