"""Rounds, figures and workers with fake peers; the real ones live in environments of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.bench import hf_export
from workbench.bench.peer_process import PeerProcess
from workbench.bench.peer_workers import llamacpp_worker, openvino_worker, vllm_worker
from workbench.bench.peers import _pairs, compare, take_rounds, vllm_environment
from workbench.bench.report import ROOT
from workbench.bench.timings import RequestTimes
from workbench.bench.workloads import WorkItem
from workbench.errors import ConfigurationError, EngineError

ITEMS = [WorkItem((1, 2), 6), WorkItem((3,), 6)]


class FakePeer:
    """Needs `duration_s` for everything, and notes what happens."""

    def __init__(self, name: str, duration_s: float, events: list[str]) -> None:
        self.name, self._duration_s, self._events = name, duration_s, events

    def run(self, items: Sequence[WorkItem]) -> list[RequestTimes]:
        self._events.append(f"{self.name} {sum(item.max_tokens for item in items)}")
        return [RequestTimes(((0.0, 1), (self._duration_s, item.max_tokens - 1))) for item in items]

    def wait_until_idle(self) -> None:
        self._events.append("idle")


def test_rounds_run_ours_right_before_each_peer_and_wait_for_idle_after_it():
    events: list[str] = []
    ours, a, b = (FakePeer(name, s, events) for name, s in (("ours", 1.0), ("a", 2.0), ("b", 4.0)))

    pairs = take_rounds(ours.run, [a, b], ITEMS, rounds=2)

    warm_up = ["ours 8", "a 8", "idle", "b 8", "idle"]
    assert events == warm_up + 2 * ["ours 12", "a 12", "idle", "ours 12", "b 12", "idle"]
    assert pairs == {"a": [(12.0, 6.0)] * 2, "b": [(12.0, 3.0)] * 2}


def test_lone_request_is_compared_by_its_decode_speed():
    ours, peer = FakePeer("ours", 1.0, []), FakePeer("a", 2.0, [])

    assert take_rounds(ours.run, [peer], ITEMS[:1], rounds=1) == {"a": [(5.0, 2.5)]}


def test_figures_hold_speeds_and_ratios_of_neighbours_with_their_spread():
    measured = {"vllm": [(10.0, 5.0), (12.0, 4.0), (20.0, 5.0)], "llamacpp": [(11.0, 22.0), (13.0, 13.0), (8.0, 8.0)]}

    assert compare(measured, 24) == {
        "workbench_24_tok_per_s": 11.5,
        "vllm_24_tok_per_s": 5.0,
        "ratio_to_vllm_24": 3.0,
        "ratio_to_vllm_24_min": 2.0,
        "ratio_to_vllm_24_max": 4.0,
        "llamacpp_24_tok_per_s": 13.0,
        "ratio_to_llamacpp_24": 1.0,
        "ratio_to_llamacpp_24_min": 0.5,
        "ratio_to_llamacpp_24_max": 1.0,
    }


def test_vllm_gets_every_core_and_intels_runtime_of_its_environment(tmp_path):
    library = tmp_path / "lib" / "libiomp5.so"
    library.parent.mkdir()
    library.touch()

    environment = vllm_environment(str(tmp_path / "bin" / "python"), 4, "intel")

    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"
    assert environment["LD_PRELOAD"].split(":")[-1] == str(library)


def test_vllm_without_intels_runtime_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(ConfigurationError, match="install intel-openmp there, or give --vllm-openmp gnu"):
        vllm_environment(str(tmp_path / "bin" / "python"), 2, "intel")


def test_variable_for_vllm_without_a_value_is_refused():
    assert _pairs(["A=b=c", "D="]) == {"A": "b=c", "D": ""}
    with pytest.raises(ConfigurationError, match="--vllm-env 'A' is not of the form NAME=VALUE"):
        _pairs(["A"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no peer to compare with"),
        (["--vllm", "/nowhere/python"], "/nowhere/python is not a file"),
        (["--transformers", "--requests", "0"], "--requests 0 must be at least 1"),
        (["--transformers", "--max-tokens", "1"], "--max-tokens 1 must be at least 2"),
        (["--transformers", "--rounds", "0"], "--rounds 0 must be at least 1"),
    ],
)
def test_peers_refuse_bad_options_before_anything_is_loaded(options: list[str], message: str):
    command = [sys.executable, "-m", "workbench.bench", "peers", "--json", *options]

    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr


# ------------------------------------------------------------------------------------- workers


class FakeVLLM:
    """Hands out two tokens of every open request a step."""

    def __init__(self) -> None:
        self.open: dict[str, int] = {}

    def add_request(self, name: str, prompt: Any, params: int) -> None:
        assert prompt == {"prompt_token_ids": [1]}
        self.open[name] = params

    def has_unfinished_requests(self) -> bool:
        return bool(self.open)

    def step(self) -> list[Any]:
        outputs = [
            SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=[7] * min(2, left))])
            for name, left in self.open.items()
        ]
        self.open = {name: left - 2 for name, left in self.open.items() if left > 2}
        return outputs


def test_vllm_worker_notes_tokens_as_steps_bring_them():
    deliveries = vllm_worker.run_requests(FakeVLLM(), lambda wanted: wanted, [[1], [1]], [5, 2])

    assert [[count for _, count in each] for each in deliveries] == [[2, 2, 1], [2]]


class FakeHandle:
    """Readable once a token was put there."""

    def __init__(self, wanted: int) -> None:
        self.left, self.ready = wanted, 0

    def can_read(self) -> bool:
        return self.ready > 0

    def read(self) -> dict[int, Any]:
        self.ready -= 1
        return {0: SimpleNamespace(generated_ids=[7])}


class FakePipeline:
    """Gives every open handle a token a step."""

    def __init__(self) -> None:
        self.handles: list[FakeHandle] = []

    def add(self, prompt: list[int], wanted: int) -> FakeHandle:
        self.handles.append(FakeHandle(wanted))
        return self.handles[-1]

    def has_non_finished_requests(self) -> bool:
        return any(handle.left for handle in self.handles)

    def step(self) -> None:
        for handle in self.handles:
            if handle.left:
                handle.left -= 1
                handle.ready += 1


def test_openvino_worker_reads_every_handle_after_each_step():
    pipeline = FakePipeline()

    deliveries = openvino_worker.run_requests(pipeline.add, pipeline, [[1], [2]], [3, 1])

    assert [[count for _, count in each] for each in deliveries] == [[1, 1, 1], [1]]


class FakeServer:
    """Streams chunks that each say how many tokens there are by now."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        self.counts = counts

    def handle_completions(self, order: dict[str, Any], callback: Callable[[dict[str, Any]], bool]) -> None:
        assert order["cache_prompt"] is False and order["timings_per_token"] is True
        for count in self.counts:
            callback({"choices": [], "timings": {"predicted_n": count}})


def test_llamacpp_worker_counts_tokens_that_come_together_and_none_twice():
    deliveries = llamacpp_worker.run_requests(FakeServer((1, 4, 5, 5)), [[1], [2]], [5, 5])

    assert [[count for _, count in each] for each in deliveries] == [[1, 3, 1], [1, 3, 1]]


def test_llamacpp_worker_raises_what_the_server_refuses():
    class Refusing:
        def handle_completions(self, order: Any, callback: Callable[[dict[str, Any]], bool]) -> None:
            callback({"error": "too long"})

    with pytest.raises(RuntimeError, match=r"llama\.cpp refused request 0: too long"):
        llamacpp_worker.run_requests(Refusing(), [[1]], [5])


# ------------------------------------------------------------------------------ processes, export


@pytest.fixture
def fake_worker(tmp_path, monkeypatch) -> Callable[[str], PeerProcess]:
    """Start a worker whose program is given as text."""
    import workbench.bench.peer_process as module

    def start(program: str) -> PeerProcess:
        monkeypatch.setattr(module, "_BOOTSTRAP", program)
        return PeerProcess("fake", ["an argument"], environment={"WORKBENCH_TEST_VALUE": "set"})

    return start


ANSWERING = """
import json, os, sys
assert "GOMP_SPINCOUNT" not in os.environ
print(json.dumps({"ready": {"value": os.environ["WORKBENCH_TEST_VALUE"], "argument": sys.argv[3]}}), flush=True)
for line in sys.stdin:
    print(json.dumps({"deliveries": [[[0.5, 2], [1.0, 1]]]}), flush=True)
"""


def test_peer_process_passes_arguments_and_variables_but_not_our_own_settings(fake_worker, monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "5000")
    peer = fake_worker(ANSWERING)
    try:
        assert peer.description == {"value": "set", "argument": "an argument"}
        assert peer.run([WorkItem((1,), 3)]) == [RequestTimes(((0.5, 2), (1.0, 1)))]
        with pytest.raises(EngineError, match="fake gave 3 tokens where 4 were asked for"):
            peer.run([WorkItem((1,), 4)])
        peer.wait_until_idle()
    finally:
        peer.close()


def test_peer_that_uses_the_processor_out_of_its_turn_is_an_error(fake_worker, monkeypatch):
    monkeypatch.setattr("workbench.bench.peer_process.IDLE_TIMEOUT_S", 0.0)
    monkeypatch.setattr("workbench.bench.peer_process.EXIT_TIMEOUT_S", 0.1)
    peer = fake_worker("print('{\"ready\": {}}', flush=True)\nwhile True: pass")
    try:
        with pytest.raises(EngineError, match="while it was not its turn"):
            peer.wait_until_idle()
    finally:
        peer.close()


def test_peer_that_ends_early_is_an_error_with_its_status(fake_worker):
    with pytest.raises(EngineError, match="the worker of fake ended with status 3"):
        fake_worker("import sys; sys.exit(3)")


def test_export_is_found_again_by_the_files_content(tmp_path):
    gguf = tmp_path / "tiny.gguf"
    gguf.write_bytes(b"weights")
    there = tmp_path / "cache" / f"tiny-float32-{hf_export._digest(gguf)}"
    there.mkdir(parents=True)

    assert hf_export.exported(gguf, tmp_path / "cache") == there


def test_failed_export_is_an_error_and_leaves_nothing_behind(tmp_path):
    gguf = tmp_path / "broken.gguf"
    gguf.write_bytes(b"no weights")

    with pytest.raises(EngineError, match=r"exporting broken.gguf to float32 ended with status 1"):
        hf_export.exported(gguf, tmp_path / "cache")

    assert list(Path(tmp_path / "cache").iterdir()) == []
