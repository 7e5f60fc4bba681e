"""Looking back: every recorded step equals a state that was folded up to it, with few records applied."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tests.telemetry.simulated_engine import SimulatedEngine
from tests.telemetry.test_live_state import blocks_in, blocks_of
from workbench.telemetry.history import MIN_INTERVAL, History, StepNotRecordedError
from workbench.telemetry.live_state import LiveState
from workbench.telemetry.recorder import Recorder
from workbench.telemetry.records import PoolSnapshot, StepRecord


@dataclass
class CountingRecorder:
    """A recorder that notes how many records each question took."""

    recorder: Recorder
    asked: list[int] = field(default_factory=list)

    @property
    def capacity(self) -> int:
        return self.recorder.capacity

    @property
    def first_step(self) -> int:
        return self.recorder.first_step

    def since(self, step_id: int, most: int | None = None) -> list[StepRecord]:
        records = self.recorder.since(step_id, most)
        self.asked.append(len(records))
        return records


@dataclass
class Run:
    """A random run, folded step by step as a server does."""

    history: History
    source: CountingRecorder
    state: LiveState
    engine: SimulatedEngine
    snapshots: list[PoolSnapshot]


def random_run(num_steps: int, seed: int, capacity: int = 10_000, num_blocks: int = 24, first_step: int = 0) -> Run:
    engine = SimulatedEngine(num_blocks=num_blocks, seed=seed, num_swap_blocks=12)
    engine.step_id = first_step - 1
    source = CountingRecorder(Recorder(capacity))
    state, history, snapshots = LiveState(), History(source), []
    state.reset(engine.epoch, num_blocks, engine.block_size)
    history.begin(state)
    for _ in range(num_steps):
        engine.act_at_random()
        record = engine.step()
        snapshots.append(engine.snapshot())
        source.recorder.record(record)
        state.apply(record)
        history.note(record, state)
        history.forget_old()
    return Run(history, source, state, engine, snapshots)


def folded(run: Run, step_id: int) -> LiveState:
    state = LiveState()
    state.reset(run.engine.epoch, run.engine.num_blocks, run.engine.block_size)
    for record in run.source.recorder.since(-1):
        if record.step_id <= step_id:
            state.apply(record)
    return state


def assert_same(one: LiveState, other: LiveState) -> None:
    assert one.blocks.tolist() == other.blocks.tolist()
    assert one.further_owners == other.further_owners
    assert one.named == other.named
    assert one.request_list.ended == other.request_list.ended
    assert one.traffic.since(0) == other.traffic.since(0)
    assert one.traffic.num_blocks == other.traffic.num_blocks
    assert one.latest is not None
    now_s = one.latest.started_s + one.latest.duration_s
    assert one.figures(now_s) == other.figures(now_s)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_state_at_every_step_equals_a_fold_up_to_it_and_the_pool(seed: int) -> None:
    run = random_run(200, seed)
    fold = folded(run, -1)
    for record in run.source.recorder.since(-1):
        fold.apply(record)
        state = run.history.state_at(record.step_id)
        assert_same(state, fold)
        assert blocks_of(state) == blocks_in(run.snapshots[record.step_id])


def test_state_at_applies_no_more_records_than_lie_between_keyframes() -> None:
    run = random_run(300, seed=4)
    run.source.asked.clear()
    for step_id in random.Random(0).sample(range(300), 100):
        run.history.state_at(step_id)
    assert run.history.interval == MIN_INTERVAL
    assert max(run.source.asked) < MIN_INTERVAL


def test_steps_may_be_counted_from_one() -> None:
    run = random_run(40, seed=4, first_step=1)
    assert (run.history.first_step, run.history.last_step) == (1, 40)
    for step_id in (1, 2, 31, 32, 33, 40):
        assert blocks_of(run.history.state_at(step_id)) == blocks_in(run.snapshots[step_id - 1])


def test_looking_back_changes_nothing() -> None:
    run = random_run(100, seed=5)
    before = run.state.copy()
    first = run.history.state_at(40)
    first.blocks["owner"] = 77
    first.request_list.named.clear()
    first.rate.add(0.0, 5)
    assert_same(run.history.state_at(40), folded(run, 40))
    assert_same(run.state, before)


def test_rate_of_a_past_step_does_not_depend_on_who_looked_at_the_live_one() -> None:
    watched, alone = random_run(0, seed=6), random_run(0, seed=6)
    for _ in range(MIN_INTERVAL * 2):
        for run in (watched, alone):
            run.engine.act_at_random()
            record = run.engine.step()
            run.source.recorder.record(record)
            run.state.apply(record)
            run.state.figures(record.started_s + (1000 if run is watched else 0))
            run.history.note(record, run.state)
    for step_id in range(MIN_INTERVAL * 2):
        assert_same(watched.history.state_at(step_id), alone.history.state_at(step_id))


@pytest.mark.parametrize("capacity", [5, 70])
def test_history_reaches_as_far_back_as_the_recorder_less_one_interval(capacity: int) -> None:
    run = random_run(300, seed=7, capacity=capacity)
    oldest = run.source.first_step
    assert oldest == 300 - capacity
    assert oldest <= run.history.first_step <= oldest + run.history.interval
    assert run.history.last_step == 299
    for step_id in range(run.history.first_step, 300):
        assert blocks_of(run.history.state_at(step_id)) == blocks_in(run.snapshots[step_id])


@pytest.mark.parametrize("step_id", [-1, 9, 300])
def test_state_at_refuses_a_step_that_is_not_recorded(step_id: int) -> None:
    run = random_run(300, seed=7, capacity=70)
    first = run.history.first_step
    message = f"step {step_id} is not recorded: steps {first} to 299 are"
    for ask in (run.history.state_at, run.history.record_at, run.history.keys_at):
        with pytest.raises(StepNotRecordedError, match=message):
            ask(step_id)


def test_history_is_empty_before_the_first_step() -> None:
    run = random_run(0, seed=0)
    assert (run.history.first_step, run.history.last_step) == (-1, -1)
    with pytest.raises(StepNotRecordedError, match="step 0 is not recorded: no step is yet"):
        run.history.state_at(0)


def test_state_at_notices_records_that_the_recorder_lost_meanwhile() -> None:
    run = random_run(100, seed=8)
    for _ in range(3):
        run.source.recorder._records.popleft()
    for step_id in (0, 2, 3, 20):
        with pytest.raises(StepNotRecordedError):
            run.history.state_at(step_id)
    assert run.history.state_at(99).step_id == 99


def test_history_forgets_requests_whose_steps_are_gone() -> None:
    run = random_run(2000, seed=9, capacity=200)
    first = run.history.first_step
    assert run.history.facts_of(run.history.rows_after(-1, 10_000)) != []
    assert all(facts.last_step >= first for facts in run.history._facts.values())
    assert len(run.history._keyframes) <= 200 // run.history.interval + 2


@pytest.mark.parametrize(
    ("num_blocks", "num_steps", "interval"),
    [(24, 10_000, 32), (8192, 10_000, 32), (65_536, 10_000, 256), (24, 10_001, 64), (65_536, 1_000_000, 25_600)],
)
def test_interval_grows_with_pool_and_length_so_that_keyframes_stay_small(
    num_blocks: int, num_steps: int, interval: int
) -> None:
    state, history = LiveState(), History(Recorder(num_steps))
    state.reset(1, num_blocks, 16)
    history.begin(state)
    assert history.interval == interval
