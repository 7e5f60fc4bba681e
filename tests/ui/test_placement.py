"""Where an answer lies is read from the step records, and kept as it was when the answer ended."""

from __future__ import annotations

import msgspec

from tests.ui.scripted_service import ScriptedService, request_state
from workbench.telemetry.records import BlockState, BlockStatus, FinishReason, RequestStatus, StepRecord
from workbench.ui.placement import Placement


def is_ours(name: str) -> bool:
    return name.startswith("r1")


def record(*changes: BlockState, ended: tuple[str, ...] = ()) -> StepRecord:
    service = ScriptedService()
    service.record(*(request_state(n, RequestStatus.FINISHED, finish_reason=FinishReason.STOP) for n in ended))
    latest = service.recorder.latest
    assert latest is not None
    return msgspec.structs.replace(latest, block_changes=changes)


def held(block_id: int, logical_index: int, *names: str) -> BlockState:
    return BlockState(block_id, BlockStatus.ACTIVE, len(names), 16, names, logical_index)


def freed(block_id: int) -> BlockState:
    return BlockState(block_id, BlockStatus.FREE, 0, 0, (), -1)


def test_blocks_are_given_by_their_place_in_the_context():
    placement = Placement()
    placement.take(record(held(9, 1, "r1"), held(4, 0, "r2", "r1"), held(5, 0, "r2")), is_ours)
    assert placement.blocks("r1") == ((4,), (9,))
    assert placement.blocks("r2") == ()


def test_blocks_of_several_groups_of_layers_stand_at_the_same_place():
    placement = Placement()
    placement.take(record(held(9, 0, "r1"), held(4, 0, "r1")), is_ours)
    assert placement.blocks("r1") == ((4, 9),)


def test_blocks_are_lost_by_preemption_and_found_anew():
    placement = Placement()
    placement.take(record(held(3, 0, "r1")), is_ours)
    placement.take(record(freed(3)), is_ours)
    assert placement.blocks("r1") == ()
    placement.take(record(held(7, 0, "r1"), held(3, 0, "r2")), is_ours)
    assert placement.blocks("r1") == ((7,),)


def test_blocks_stay_known_after_the_end():
    placement = Placement()
    placement.take(record(held(3, 0, "r1", "r1.1"), held(4, 1, "r1")), is_ours)
    placement.take(record(held(3, 0, "r1.1"), freed(4), ended=("r1",)), is_ours)
    placement.take(record(held(3, 0, "r9")), is_ours)
    assert placement.blocks("r1") == ((3,), (4,))
    assert placement.blocks("r1.1") == ()
