"""The kernel benchmark on a tiny model: torch's side must compute what ours does, or the ratio means nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
import torch

from kernels.ops import Ops
from kernels.reference.backend import ReferenceOps
from kernels.weights import RowWeight
from workbench.bench.kernels.cases import attention_cases, elementwise_cases, linear_cases, linears
from workbench.bench.kernels.command import case_figures, linear_totals, machine_figures
from workbench.bench.kernels.step import TimedOps, timer_cost
from workbench.bench.kernels.timing import Case, Timing, fastest, time_case
from workbench.bench.machine import Machine, best_of
from workbench.models.config import ModelConfig

TINY = ModelConfig(
    name="tiny",
    architecture="llama",
    vocab_size=50,
    hidden_size=24,
    intermediate_size=20,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_size=8,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_ids=frozenset({1}),
)
POOL_BYTES = 64 * 1024


def all_cases() -> Iterator[Case]:
    ops: Ops = ReferenceOps()
    yield from linear_cases(ops, TINY, (1, 3), POOL_BYTES)
    yield from elementwise_cases(ops, TINY, (1, 3))
    yield from attention_cases(ops, TINY, contexts=(16, 40), requests=(1, 3), prefill=20, pool_bytes=POOL_BYTES)


@pytest.mark.parametrize("number", [0, 1, 7])
@pytest.mark.parametrize("way", [0, -1])
def test_torch_computes_what_our_op_does_in_every_case_and_way(number: int, way: int, monkeypatch):
    monkeypatch.setattr("workbench.bench.kernels.cases.fastest", lambda ways: ways[way])
    for case in all_cases():
        ours, theirs = case.ours(number), case.torch(number)

        assert isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)
        torch.testing.assert_close(ours, theirs, msg=f"{case.name} differs")


def test_calls_take_other_weights_and_other_kv_in_turn():
    cases = {case.name: case for case in all_cases()}
    for name in ("linear_qkv_rows1", "attention_decode_requests1_context16"):
        first, second = cast(torch.Tensor, cases[name].ours(0)), cast(torch.Tensor, cases[name].ours(1))

        assert not torch.equal(first, second)


def test_pool_smaller_than_a_weight_still_gives_one():
    cases = list(linear_cases(ReferenceOps(), TINY, (1,), pool_bytes=64))

    assert [case.name for case in cases][-1] == "linear_head_rows1"
    assert cast(torch.Tensor, cases[-1].ours(5)).shape == (1, 50)


def test_floors_of_a_case_count_weights_activations_and_operations():
    qkv, prefill = (
        next(case for case in all_cases() if case.name == name) for name in ("linear_qkv_rows3", "attention_prefill_20")
    )

    assert (qkv.num_bytes, qkv.flops) == (4 * (80 * 24 + 3 * (80 + 24)), 2 * 3 * 80 * 24)
    assert prefill.flops == 4 * 6 * 8 * 210


def test_linears_of_a_pass_are_four_for_each_layer_and_one_head():
    found = {each.name: (each.num_outputs, each.num_inputs, each.per_pass) for each in linears(TINY)}

    assert found == {
        "qkv": (80, 24, 3),
        "output": (24, 48, 3),
        "gate_up": (40, 24, 3),
        "down": (24, 20, 3),
        "head": (50, 24, 1),
    }


class Clock:
    """Time that passes only by what the calls say."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.order: list[str] = []

    def call(self, name: str, cost_s: float) -> Any:
        def run(number: int) -> None:
            self.order.append(f"{name}{number}")
            self.now_s += cost_s

        return run


def test_timing_alternates_and_counts_on_through_the_copies():
    clock = Clock()
    case = Case("c", clock.call("a", 2.0), clock.call("b", 8.0), 0, 0)

    timing = time_case(case, repetitions=2, least_s=4.0, clock=lambda: clock.now_s)

    assert timing == Timing((2.0, 2.0), (8.0, 8.0))
    assert timing.ratio_to_torch == 4.0
    assert clock.order == ["a0", "a1", "b0", "b1", "a2", "a3", "b2", "a4", "a5", "b3"]


def test_fastest_way_is_the_one_with_the_shortest_call():
    clock = Clock()
    slow, fast = clock.call("a", 2.0), clock.call("b", 1.0)

    assert fastest((slow, fast), lambda: clock.now_s) is fast


def fake_timings(names_to_s: dict[str, tuple[float, float]]) -> dict[str, tuple[Case, Timing]]:
    case = Case("any", lambda _: None, lambda _: None, num_bytes=1000, flops=500)
    return {name: (case, Timing((ours,), (torchs,))) for name, (ours, torchs) in names_to_s.items()}


def test_linear_totals_weigh_each_linear_as_one_forward_pass_does():
    names: Sequence[str] = ("qkv", "output", "gate_up", "down", "head")
    timings = fake_timings({f"linear_{name}_rows1": (1e-6, 2e-6) for name in names})
    weights = 3 * (80 * 24 + 24 * 48 + 40 * 24 + 24 * 20) + 50 * 24

    figures = linear_totals(timings, linears(TINY), (1, 2), Machine(1e10, 1e11))

    assert figures == pytest.approx(
        {
            "linear_rows1_us": 13.0,
            "linear_rows1_torch_us": 26.0,
            "linear_rows1_ratio_to_torch": 2.0,
            "linear_rows1_bandwidth_fraction": 4 * weights / 13e-6 / 1e10,
            "linear_rows1_gemm_fraction": 2 * weights / 13e-6 / 1e11,
        }
    )


def test_case_figures_compare_with_the_higher_floor_and_with_torch():
    figures = case_figures(fake_timings({"x": (4e-6, 6e-6)}), Machine(1e9, 1e9))

    assert figures == pytest.approx(
        {
            "x_us": 4.0,
            "x_us_min": 4.0,
            "x_us_max": 4.0,
            "x_torch_us": 6.0,
            "x_ratio_to_torch": 1.5,
            "x_floor_fraction": 0.25,
        }
    )


def test_machine_is_the_best_of_its_probes_and_shows_the_worst():
    probes = [Machine(1e9, 5e9), Machine(3e9, 4e9)]

    assert best_of(probes) == Machine(3e9, 5e9)
    assert machine_figures(probes) == {
        "bandwidth_gb_per_s": 3.0,
        "bandwidth_gb_per_s_min": 1.0,
        "gemm_gflop_per_s": 5.0,
        "gemm_gflop_per_s_min": 4.0,
    }


def test_timed_ops_pass_everything_on_and_count_calls():
    timed: Any = TimedOps(ReferenceOps())
    x, weight = torch.ones(1, 2), RowWeight(torch.ones(3, 2))

    assert timed.name == "reference"
    assert timed.linear(x, weight).tolist() == [[2.0, 2.0, 2.0]]
    assert timed.linear(x, weight).tolist() == [[2.0, 2.0, 2.0]]
    assert timed.calls == {"linear": 2}
    assert timed.seconds["linear"] > 0
    timed.reset()
    assert (timed.calls, timed.seconds) == ({}, {})


def test_timer_cost_is_not_negative():
    assert timer_cost() >= 0
