"""The bounded memory of steps: what it forgets, what it answers, and what switching it off does."""

from __future__ import annotations

import pytest

from tests.telemetry.simulated_engine import SimulatedEngine
from workbench.telemetry.recorder import Recorder


def recorded(num_steps: int, capacity: int) -> tuple[Recorder, SimulatedEngine]:
    engine, recorder = SimulatedEngine(num_blocks=24, seed=3), Recorder(capacity)
    for _ in range(num_steps):
        engine.act_at_random()
        recorder.record(engine.step())
    return recorder, engine


@pytest.mark.parametrize(
    ("after", "most", "steps"),
    [
        (-1, None, [5, 6, 7, 8, 9]),
        (4, None, [5, 6, 7, 8, 9]),
        (6, None, [7, 8, 9]),
        (6, 2, [7, 8]),
        (-1, 3, [5, 6, 7]),
        (9, None, []),
        (100, 4, []),
    ],
)
def test_since_gives_the_records_after_a_step_up_to_a_number(after: int, most: int | None, steps: list[int]) -> None:
    recorder, _ = recorded(10, capacity=5)
    assert [record.step_id for record in recorder.since(after, most)] == steps


def test_first_step_is_the_oldest_that_is_remembered() -> None:
    assert Recorder().first_step == -1
    assert recorded(10, capacity=5)[0].first_step == 5
    assert recorded(3, capacity=5)[0].first_step == 0


def test_blocks_at_counts_the_steps_that_were_forgotten() -> None:
    recorder, engine = recorded(60, capacity=5)
    known = recorder.blocks_at(59)
    assert [known.get(block.block_id, block) for block in engine.snapshot().blocks] == list(engine.snapshot().blocks)
    with pytest.raises(KeyError, match="step 54 is not recorded: steps 55 to 59 are"):
        recorder.blocks_at(54)


def test_switching_forgets_everything_and_records_nothing_while_off() -> None:
    recorder, engine = recorded(10, capacity=5)
    recorder.switch(False)
    recorder.record(engine.step())
    assert (recorder.latest, recorder.first_step, recorder.since(-1)) == (None, -1, [])
    recorder.switch(True)
    recorder.record(engine.step())
    assert [record.step_id for record in recorder.since(-1)] == [11]
