"""The folded state: literal small cases, and equality with the pool after many random steps."""

from __future__ import annotations

import msgspec
import pytest

from tests.telemetry.simulated_engine import STEP_S, SimulatedEngine
from workbench.telemetry.live_state import LiveState
from workbench.telemetry.records import BlockState, BlockStatus, PoolSnapshot, RequestStatus


def make_state(engine: SimulatedEngine, epoch: int = 1) -> LiveState:
    state = LiveState()
    state.reset(epoch, engine.num_blocks, engine.block_size)
    return state


def blocks_of(state: LiveState) -> list[tuple[int, int, int, int, tuple[str, ...], int]]:
    """The state's blocks in the form of `BlockState`."""
    ids = {r.key: name for name, r in state.requests.items()}
    return [
        (
            i,
            int(b["status"]),
            int(b["ref_count"]),
            int(b["num_filled"]),
            tuple(ids[key] for key in (int(b["owner"]), *state.further_owners.get(i, ())) if key),
            int(b["logical_index"]),
        )
        for i, b in enumerate(state.blocks)
    ]


def blocks_in(snapshot: PoolSnapshot) -> list[tuple[int, int, int, int, tuple[str, ...], int]]:
    return [
        (b.block_id, int(b.status), b.ref_count, b.num_filled, b.request_ids, b.logical_index) for b in snapshot.blocks
    ]


def slots_of(state: LiveState) -> dict[str, int | None]:
    return {name: request.slot for name, request in state.requests.items()}


def test_live_state_shows_the_blocks_of_a_first_step() -> None:
    engine = SimulatedEngine(num_blocks=4)
    engine.add(num_prompt_tokens=20, max_tokens=5)
    state = make_state(engine)
    state.apply(engine.step())
    assert blocks_of(state) == [
        (0, 2, 1, 16, ("r1",), 0),
        (1, 2, 1, 4, ("r1",), 1),
        (2, 0, 0, 0, (), -1),
        (3, 0, 0, 0, (), -1),
    ]
    assert state.step_id == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_live_state_equals_the_pool_after_every_random_step(seed: int) -> None:
    engine = SimulatedEngine(num_blocks=24, seed=seed, num_swap_blocks=12)
    state = make_state(engine)
    seen: set[BlockStatus] = set()
    most_references = 0
    for _ in range(300):
        engine.act_at_random()
        state.apply(engine.step())
        snapshot = engine.snapshot()
        assert blocks_of(state) == blocks_in(snapshot)
        seen |= {b.status for b in snapshot.blocks}
        most_references = max(most_references, *(b.ref_count for b in snapshot.blocks))
    assert seen == {BlockStatus.FREE, BlockStatus.CACHED, BlockStatus.ACTIVE}
    assert most_references > 1
    assert min(state.traffic.num_blocks.values()) > 0


def test_live_state_ignores_a_record_that_it_knows() -> None:
    engine = SimulatedEngine()
    engine.add(5, 5)
    state = make_state(engine)
    record = engine.step()
    state.apply(record)
    version = state.version
    state.apply(record)
    assert state.version == version


def test_changed_since_names_exactly_the_blocks_of_later_steps() -> None:
    engine = SimulatedEngine(num_blocks=8)
    engine.add(num_prompt_tokens=20, max_tokens=9)
    state = make_state(engine)
    state.apply(engine.step())
    first = state.version
    assert state.changed_since(first).tolist() == []
    state.apply(engine.step())
    assert state.changed_since(first).tolist() == [1]
    assert state.changed_since(0).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_changed_since_names_a_block_whose_further_owners_changed() -> None:
    engine = SimulatedEngine(num_blocks=8)
    engine.add(num_prompt_tokens=40, max_tokens=9)
    state = make_state(engine)
    state.apply(engine.step())
    engine.fork("r1")
    state.apply(engine.step())
    keys = {name: request.key for name, request in state.requests.items()}
    assert state.further_owners == {0: (keys["r1.1"],), 1: (keys["r1.1"],)}
    before = state.version
    record = engine.step()
    swapped = tuple(
        msgspec.structs.replace(engine.state(block), request_ids=("r1", "r9")) for block in (0, 1)
    )  # r9 is not known: the second owner has gone, and the count tells nothing of it
    state.apply(msgspec.structs.replace(record, block_changes=swapped))
    assert state.changed_since(before).tolist() == [0, 1]
    assert state.further_owners == {}


def test_since_step_is_the_allocation_and_changed_step_the_last_change() -> None:
    engine = SimulatedEngine(num_blocks=8)
    engine.add(num_prompt_tokens=3, max_tokens=9)
    state = make_state(engine)
    for _ in range(5):
        state.apply(engine.step())
    assert state.blocks["since_step"].tolist()[0] == 0
    assert state.blocks["changed_step"].tolist()[0] == 4


def test_since_step_of_a_cached_block_is_its_last_use() -> None:
    engine = SimulatedEngine(num_blocks=8)
    engine.add(num_prompt_tokens=20, max_tokens=3, prefix="system")
    state = make_state(engine)
    for _ in range(5):
        state.apply(engine.step())
    assert blocks_of(state)[0] == (0, 1, 0, 16, (), 0)
    assert state.blocks["since_step"].tolist()[0] == 2


def test_slot_is_the_lowest_free_one_and_never_changes_while_the_request_lives() -> None:
    engine = SimulatedEngine(num_blocks=64)
    for max_tokens in (9, 2, 9):
        engine.add(num_prompt_tokens=4, max_tokens=max_tokens)
    state = make_state(engine)
    state.apply(engine.step())
    assert slots_of(state) == {"r1": 0, "r2": 1, "r3": 2}
    state.apply(engine.step())
    assert slots_of(state) == {"r1": 0, "r3": 2}
    engine.add(4, 9)
    state.apply(engine.step())
    assert slots_of(state) == {"r1": 0, "r3": 2, "r4": 1}


def test_slot_is_kept_through_preemption() -> None:
    engine = SimulatedEngine(num_blocks=6, budget=32)
    for _ in range(2):
        engine.add(num_prompt_tokens=30, max_tokens=40)
    state = make_state(engine)
    preempted = False
    while not preempted:
        state.apply(engine.step())
        preempted = any(r.state.status is RequestStatus.PREEMPTED for r in state.requests.values())
    assert slots_of(state) == {"r1": 0, "r2": 1}
    assert state.blocks["owner"].tolist().count(state.requests["r2"].key) == 0


def test_slot_is_absent_until_admission() -> None:
    engine = SimulatedEngine(num_blocks=4)
    engine.add(30, 20)
    engine.add(60, 20)
    state = make_state(engine)
    state.apply(engine.step())
    assert slots_of(state) == {"r1": 0, "r2": None}


def test_request_key_is_never_used_again() -> None:
    engine = SimulatedEngine()
    engine.add(3, 2)
    state = make_state(engine)
    state.apply(engine.step())
    assert state.requests["r1"].key == 1
    engine.add(3, 9)
    state.apply(engine.step())
    assert {name: request.key for name, request in state.requests.items()} == {"r2": 2}


def test_keyframe_repairs_lost_records_and_keeps_colours() -> None:
    engine = SimulatedEngine(num_blocks=24, seed=4)
    engine.add(20, 500)
    engine.add(20, 500)
    state = make_state(engine)
    state.apply(engine.step())
    for _ in range(40):
        engine.step()
    record = engine.step()
    state.keyframe(engine.snapshot().blocks, record)
    assert blocks_of(state) == blocks_in(engine.snapshot())
    assert slots_of(state) == {"r1": 0, "r2": 1}
    state.apply(record)
    state.apply(engine.step())
    assert blocks_of(state) == blocks_in(engine.snapshot())


def test_reset_begins_an_epoch_with_every_block_free_and_a_later_version() -> None:
    engine = SimulatedEngine(num_blocks=8)
    engine.add(20, 5)
    state = make_state(engine)
    state.apply(engine.step())
    version = state.version
    state.reset(epoch=2, num_blocks=3, block_size=8)
    assert (state.epoch, state.num_blocks, state.block_size, state.step_id) == (2, 3, 8, -1)
    assert state.version > version
    assert state.changed_since(version).tolist() == [0, 1, 2]
    assert blocks_of(state) == [(0, 0, 0, 0, (), -1), (1, 0, 0, 0, (), -1), (2, 0, 0, 0, (), -1)]
    assert state.requests == {}


def test_figures_count_tokens_over_the_last_three_seconds() -> None:
    engine = SimulatedEngine(num_blocks=64)
    engine.add(4, 500)
    engine.add(4, 500)
    state = make_state(engine)
    for _ in range(100):
        state.apply(engine.step())
    now_s = 100.0 + 100 * STEP_S
    figures = state.figures(now_s)
    assert figures.tokens_per_s == pytest.approx(2 / STEP_S, rel=0.02)
    assert (figures.num_running, figures.num_waiting) == (2, 0)
    assert state.figures(now_s + 1.5).tokens_per_s == pytest.approx(1 / STEP_S, rel=0.04)
    assert state.figures(now_s + 3.5).tokens_per_s == 0.0


def test_figures_are_zero_before_the_first_step() -> None:
    figures = make_state(SimulatedEngine()).figures(0.0)
    assert (figures.num_running, figures.tokens_per_s, figures.num_active_blocks) == (0, 0.0, 0)


def test_reference_counts_beyond_the_wire_are_shown_as_its_largest() -> None:
    state = LiveState()
    state.reset(1, 1, 16)
    engine = SimulatedEngine(num_blocks=1)
    crowded = (BlockState(0, BlockStatus.ACTIVE, 70_000, 16, (), 0),)
    state.apply(msgspec.structs.replace(engine.step(), block_changes=crowded))
    assert state.blocks["ref_count"].tolist() == [65_535]
