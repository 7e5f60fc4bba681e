"""What moved between blocks and host memory: the last movements, and how many blocks in all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from workbench.telemetry.records import BlockTransfer, TransferKind

MOVEMENTS_KEPT: Final = 32


@dataclass(frozen=True)
class Movement:
    """Blocks that one request moved in one step, in the same way."""

    version: int
    """Of the live state with this step."""
    step_id: int
    kind: TransferKind
    request_id: str
    block_ids: tuple[int, ...]
    """Blocks of the pool: source and target in turn for a copy, otherwise those that were left or filled."""


class LiveTraffic:
    """Folded from the transfers of step records."""

    def __init__(self) -> None:
        self.num_blocks: dict[TransferKind, int] = dict.fromkeys(TransferKind, 0)
        """Blocks moved since the epoch began, as far as its records were seen."""
        self._movements: deque[Movement] = deque(maxlen=MOVEMENTS_KEPT)

    def copy(self) -> LiveTraffic:
        """Return the same traffic, to go on by itself."""
        twin = LiveTraffic()
        twin.num_blocks = dict(self.num_blocks)
        twin._movements.extend(self._movements)
        return twin

    def apply(self, transfers: Iterable[BlockTransfer], step_id: int, version: int) -> None:
        """Take in the transfers of one step."""
        for (kind, request_id), group in groupby(transfers, key=lambda transfer: (transfer.kind, transfer.request_id)):
            pairs = [(transfer.source_id, transfer.target_id) for transfer in group]
            self.num_blocks[kind] += len(pairs)
            self._movements.append(Movement(version, step_id, kind, request_id, _pool_blocks(kind, pairs)))

    def since(self, version: int) -> list[Movement]:
        """Return the movements after a version of the live state, the oldest first; no more than are kept."""
        return [movement for movement in self._movements if movement.version > version]

    def in_step(self, step_id: int) -> list[Movement]:
        """Return the movements of one of the last steps."""
        return [movement for movement in self._movements if movement.step_id == step_id]


def _pool_blocks(kind: TransferKind, pairs: list[tuple[int, int]]) -> tuple[int, ...]:
    match kind:
        case TransferKind.COPY:
            return tuple(block for pair in pairs for block in pair)
        case TransferKind.SWAP_OUT:
            return tuple(source for source, _ in pairs)
        case TransferKind.SWAP_IN:
            return tuple(target for _, target in pairs)
