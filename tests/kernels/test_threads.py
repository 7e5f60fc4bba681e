"""Kernels in several Python threads at once, and numba's threading layer."""

from __future__ import annotations

import subprocess
import sys

import numba
import pytest
from numba.core.dispatcher import Dispatcher

from kernels.cpu import copy_blocks, elementwise, linear, numba_setup, paged_attention, panels, scalar

TWO_THREADS = """
import threading
import torch
from kernels.ops import load_backend
from kernels.weights import RowWeight

ops = load_backend("cpu")
torch.manual_seed(0)
x, weight = torch.randn(8, 576), ops.prepare_weight(RowWeight(torch.randn(1536, 576)))
expected = ops.linear(x, weight)
equal = [0, 0]
start = threading.Barrier(2)

def work(index):
    own = load_backend("cpu")
    own.set_num_threads(index + 1)
    start.wait()
    for _ in range(60):
        equal[index] += torch.equal(own.linear(x, weight), expected)

threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
print(equal)
"""


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two cores")
def test_kernels_run_in_two_python_threads_at_once():
    assert run(TWO_THREADS) == "[60, 60]"


@pytest.mark.parametrize("module", [copy_blocks, elementwise, linear, paged_attention, panels, scalar])
def test_every_compiled_function_releases_the_interpreter_lock(module):
    """A kernel that holds it stalls the page for as long as it runs."""
    compiled = [value for value in vars(module).values() if isinstance(value, Dispatcher)]
    assert compiled
    assert all(function.targetoptions.get("nogil") for function in compiled)


def test_threading_layer_is_openmp():
    numba_setup.load_threading_layer()
    assert numba.threading_layer() == "omp"


def test_threading_layer_error_names_the_remedy_when_openmp_is_missing(monkeypatch):
    def fail():
        raise ValueError("No threading layer could be loaded.")

    monkeypatch.setattr(numba, "get_num_threads", fail)
    with pytest.raises(RuntimeError, match=r"install the GNU OpenMP runtime .*apt-get install libgomp1"):
        numba_setup.load_threading_layer()


def test_threading_layer_refuses_workqueue(monkeypatch):
    monkeypatch.setattr(numba, "threading_layer", lambda: "workqueue")
    with pytest.raises(RuntimeError, match="already runs on its 'workqueue' threading layer"):
        numba_setup.load_threading_layer()
