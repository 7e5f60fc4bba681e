"""Notice the PyPI package `kernels`, which shares its import name with our kernels folder.

transformers asks the installed distributions whether `kernels` is there and then imports names
from it. Beside this project that import finds our folder instead, and transformers, for those
versions of the package that it accepts, can no longer import a model.
"""

from __future__ import annotations

import sys
from importlib import metadata


def foreign_kernels_warning() -> str | None:
    """Return what is wrong and how to mend it, or None when the package is not installed.

    Call before transformers is imported, and show the text on standard error.
    """
    try:
        version = metadata.version("kernels")
    except metadata.PackageNotFoundError:
        return None
    return (
        f"The package kernels {version} is installed in this environment. It has the same import name as this "
        "project's kernels folder, so transformers can fail to load models. "
        f"Remove it: {sys.executable} -m pip uninstall kernels"
    )
