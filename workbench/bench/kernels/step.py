"""What a decode step of the real engine costs beyond its kernels: scheduling, batch, sampling, text, record."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kernels.ops import Ops
from workbench.engine.core import EngineCore
from workbench.engine.messages import Submit
from workbench.errors import EngineError
from workbench.sampling_params import SamplingParams

PROMPT_LENGTH: Final = 32
WARM_UP_STEPS: Final = 4
CALIBRATION_CALLS: Final = 2000


class TimedOps:
    """Ops that note how long each call of another backend takes. Has whatever ops that backend has."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.seconds: dict[str, float] = {}
        """Op → seconds in it since `reset`."""
        self.calls: dict[str, int] = {}

    def reset(self) -> None:
        """Forget what was noted."""
        self.seconds, self.calls = {}, {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ops, name)
        if not callable(value):
            return value

        def timed(*args: Any, **kwargs: Any) -> Any:
            started_s = time.perf_counter()
            result = value(*args, **kwargs)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started_s
            self.calls[name] = self.calls.get(name, 0) + 1
            return result

        setattr(self, name, timed)  # found directly from now on
        return timed


@dataclass(frozen=True)
class StepCost:
    """Medians over decode steps of one request."""

    step_s: float
    kernels_s: float
    overhead_s: float
    """Step minus kernels, without what the timing of calls itself costs."""
    calls: int
    """Calls of ops in a step."""
    kernel_s: dict[str, float]
    """Op → its seconds in a step."""


def measure_step(core: EngineCore, timed: TimedOps, num_steps: int) -> StepCost:
    """Decode one request of the core, whose model runs on `timed`, and split each step.

    Raises:
        EngineError: a step failed.
    """
    params = SamplingParams(temperature=0, max_tokens=num_steps + WARM_UP_STEPS + 8, ignore_eos=True)
    core.submit(Submit("step", tuple(range(100, 100 + PROMPT_LENGTH)), params, time.monotonic()), seed=0)
    for _ in range(WARM_UP_STEPS):
        _step(core)
    steps, inside, kernels = [], [], []
    for _ in range(num_steps):
        timed.reset()
        started_s = time.perf_counter()
        _step(core)
        steps.append(time.perf_counter() - started_s)
        inside.append(sum(timed.seconds.values()))
        kernels.append(timed.seconds)
    calls = sum(timed.calls.values())
    own_s = calls * timer_cost()
    core.abort("step")
    return StepCost(
        step_s=statistics.median(steps) - own_s,
        kernels_s=statistics.median(inside),
        overhead_s=statistics.median(a - b for a, b in zip(steps, inside, strict=True)) - own_s,
        calls=calls,
        kernel_s={name: statistics.median(each[name] for each in kernels) for name in kernels[-1]},
    )


def timer_cost() -> float:
    """Return the seconds that noting one call adds to a step outside the noted time."""

    class Nothing:
        def op(self) -> None:
            """Do nothing."""

    timed: Any = TimedOps(Nothing())  # type: ignore[arg-type]  # needs no more than an op

    def mean_of(call: Callable[[], None]) -> float:
        started_s = time.perf_counter()
        for _ in range(CALIBRATION_CALLS):
            call()
        return (time.perf_counter() - started_s) / CALIBRATION_CALLS

    noted_s = mean_of(timed.op) - timed.seconds["op"] / CALIBRATION_CALLS
    return max(0.0, noted_s - mean_of(Nothing().op))


def _step(core: EngineCore) -> None:
    error = core.step().error
    if error is not None:
        raise EngineError(f"a decode step failed: {error}") from error
