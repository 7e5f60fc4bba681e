"""Load numba with the one threading layer this project can use. Import this before torch.

`omp` is forced: `workqueue` aborts the process when two Python threads run kernels at once (two
engines, or an engine and a benchmark). Loading numba's OpenMP runtime before torch's lets both
share one; hence this module imports no torch, and start-up code should import it first.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import numba


def load_threading_layer() -> None:
    """Make numba load its OpenMP threading layer now.

    Raises:
        RuntimeError: it cannot be loaded, or another one was loaded before; says the remedy.
    """
    numba.config.THREADING_LAYER = "omp"
    try:
        numba.get_num_threads()  # this is what loads the layer
        layer = numba.threading_layer()
    except (ImportError, ValueError) as error:
        raise RuntimeError(
            "numba cannot load its OpenMP threading layer, which the CPU kernels need: install the GNU OpenMP "
            f"runtime (Debian: apt-get install libgomp1) and start again ({error})"
        ) from error
    if layer != "omp":
        raise RuntimeError(
            f"numba already runs on its {layer!r} threading layer: load the kernels before other numba code runs"
        )


def use_versioned_cache() -> None:
    """Keep compiled kernels apart by the content of all kernel sources.

    numba's cache looks only at the file of the compiled function, so an edit of a helper in another
    file would leave stale machine code behind. NUMBA_CACHE_DIR, when set, is respected.
    """
    if numba.config.CACHE_DIR:
        return
    folder = Path(__file__).parent
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in sorted(folder.glob("*.py")))).hexdigest()[:12]
    for base in (folder / "__pycache__", Path.home() / ".cache" / "workbench-kernels", Path(tempfile.gettempdir())):
        target = base / f"numba-{digest}"
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(target, os.W_OK):
            numba.config.CACHE_DIR = str(target)
            return


use_versioned_cache()
load_threading_layer()
