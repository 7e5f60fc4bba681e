"""Movements are one for each request, step and kind, and blocks are counted."""

from __future__ import annotations

from workbench.telemetry.live_traffic import MOVEMENTS_KEPT, LiveTraffic, Movement
from workbench.telemetry.records import BlockTransfer, TransferKind


def test_transfers_of_one_request_are_one_movement_of_the_pools_blocks() -> None:
    traffic = LiveTraffic()
    transfers = [
        BlockTransfer(TransferKind.SWAP_OUT, 7, 0, "r3"),
        BlockTransfer(TransferKind.SWAP_OUT, 9, 1, "r3"),
        BlockTransfer(TransferKind.SWAP_OUT, 4, 2, "r4"),
        BlockTransfer(TransferKind.SWAP_IN, 5, 7, "r1"),
        BlockTransfer(TransferKind.COPY, 8, 9, "r5.1"),
        BlockTransfer(TransferKind.COPY, 2, 4, "r5.1"),
    ]
    traffic.apply(transfers, step_id=12, version=3)
    assert traffic.since(2) == [
        Movement(3, 12, TransferKind.SWAP_OUT, "r3", (7, 9)),
        Movement(3, 12, TransferKind.SWAP_OUT, "r4", (4,)),
        Movement(3, 12, TransferKind.SWAP_IN, "r1", (7,)),
        Movement(3, 12, TransferKind.COPY, "r5.1", (8, 9, 2, 4)),
    ]
    assert traffic.since(3) == []
    assert traffic.num_blocks == {TransferKind.COPY: 2, TransferKind.SWAP_OUT: 3, TransferKind.SWAP_IN: 1}


def test_only_the_last_movements_are_kept_and_all_are_counted() -> None:
    traffic = LiveTraffic()
    for step_id in range(MOVEMENTS_KEPT + 5):
        traffic.apply([BlockTransfer(TransferKind.COPY, 1, 2, "r1")], step_id, version=step_id + 1)
    assert [movement.step_id for movement in traffic.since(0)] == list(range(5, MOVEMENTS_KEPT + 5))
    assert traffic.num_blocks[TransferKind.COPY] == MOVEMENTS_KEPT + 5
