"""A client of the live feed in Python: holds what a browser holds, by the same rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.telemetry.frames import REQUEST_FIELDS, Frame, decode
from workbench.telemetry.live_state import BLOCK_DTYPE
from workbench.telemetry.records import PoolSnapshot


class LiveClient:
    """Applies frames. `known` are the query parameters that ask for what is missing."""

    def __init__(self) -> None:
        self.frame: Frame | None = None
        self.blocks: npt.NDArray[np.void] = np.zeros(0, BLOCK_DTYPE)
        self.further_owners: dict[int, list[int]] = {}
        self.rows: dict[int, dict[str, Any]] = {}
        """Request key → its row by field, in the order of the frame."""

    @property
    def known(self) -> dict[str, int]:
        if self.frame is None:
            return {}
        return {"instance": self.frame.instance, "epoch": self.frame.epoch, "version": self.frame.version}

    def apply(self, data: bytes) -> Frame:
        frame = decode(data)
        if frame.block_ids is None:
            self.blocks = frame.blocks.copy()
            self.further_owners, self.rows = {}, {}
        else:
            assert self.frame is not None
            assert frame.base_version == self.frame.version
            self.blocks[frame.block_ids] = frame.blocks
            for block in frame.block_ids.tolist():
                self.further_owners.pop(block, None)
        for first, length, *keys in frame.body["shared"]:
            self.further_owners |= {first + i: keys for i in range(length)}
        rows = {row[0]: dict(zip(REQUEST_FIELDS, row, strict=True)) for row in frame.body["requests"]}
        self.rows = {key: rows.get(key) or self.rows[key] for key in frame.body["living"]}
        self.frame = frame
        return frame

    def states(self) -> list[tuple[int, int, int, tuple[str, ...], int]]:
        """Status, references, fill, owners and logical index of each block."""
        assert self.frame is not None
        ids = {key: row["id"] for key, row in self.rows.items()}
        return [
            (
                int(b["status"]),
                int(b["ref_count"]),
                int(b["num_filled"]),
                tuple(ids[key] for key in (int(b["owner"]), *self.further_owners.get(block, ())) if key),
                int(b["logical_index"]),
            )
            for block, b in enumerate(self.blocks)
        ]


def states_in(snapshot: PoolSnapshot) -> list[tuple[int, int, int, tuple[str, ...], int]]:
    """The same form, from the engine's own pool."""
    return [(int(b.status), b.ref_count, b.num_filled, b.request_ids, b.logical_index) for b in snapshot.blocks]
