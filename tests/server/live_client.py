"""A client of the live feed in Python: holds what a browser holds, by the same rules."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from workbench.telemetry.frames import Frame, decode
from workbench.telemetry.live_state import BLOCK_DTYPE
from workbench.telemetry.records import PoolSnapshot


class LiveClient:
    """Applies frames. `known` are the query parameters that ask for what is missing."""

    def __init__(self) -> None:
        self.frame: Frame | None = None
        self.blocks: npt.NDArray[np.void] = np.zeros(0, BLOCK_DTYPE)

    @property
    def known(self) -> dict[str, int]:
        if self.frame is None:
            return {}
        return {"instance": self.frame.instance, "epoch": self.frame.epoch, "version": self.frame.version}

    def apply(self, data: bytes) -> Frame:
        frame = decode(data)
        if frame.block_ids is None:
            self.blocks = frame.blocks.copy()
        else:
            assert self.frame is not None
            assert frame.base_version == self.frame.version
            self.blocks[frame.block_ids] = frame.blocks
        self.frame = frame
        return frame

    def states(self) -> list[tuple[int, int, int, str | None, int]]:
        """Status, references, fill, owner and logical index of each block."""
        assert self.frame is not None
        ids = {row[0]: row[1] for row in self.frame.body["requests"]}
        return [
            (
                int(b["status"]),
                int(b["ref_count"]),
                int(b["num_filled"]),
                ids.get(int(b["owner"])),
                int(b["logical_index"]),
            )
            for b in self.blocks
        ]


def states_in(snapshot: PoolSnapshot) -> list[tuple[int, int, int, str | None, int]]:
    """The same form, from the engine's own pool."""
    return [
        (int(b.status), b.ref_count, b.num_filled, next(iter(b.request_ids), None), b.logical_index)
        for b in snapshot.blocks
    ]
