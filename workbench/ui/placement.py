"""Which physical blocks hold a visitor's answers, followed through the step records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from workbench.telemetry.records import StepRecord


@dataclass
class Placement:
    """Sequence → the blocks that it holds, and after its end those that it held last."""

    _held: dict[str, dict[int, int]] = field(default_factory=dict)
    """Sequence → block id → the block's place in the context."""
    _ended: set[str] = field(default_factory=set)

    def take(self, record: StepRecord, is_ours: Callable[[str], bool]) -> None:
        """Take over what a step changed of the sequences whose name `is_ours`."""
        self._ended |= {state.request_id for state in record.requests if state.finish_reason is not None}
        for block in record.block_changes:
            owners = {name for name in block.request_ids if is_ours(name)}
            for name in owners - self._ended:
                self._held.setdefault(name, {})[block.block_id] = block.logical_index
            for name in self._held.keys() - owners - self._ended:
                self._held[name].pop(block.block_id, None)

    def blocks(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Return the blocks of a sequence by their place in its context: several where groups of layers have their own.

        A block that was allocated in the sequence's very last step is not known.
        """
        held = self._held.get(name, {})
        places: list[list[int]] = [[] for _ in range(max(held.values(), default=-1) + 1)]
        for block_id, place in sorted(held.items()):
            places[place].append(block_id)
        return tuple(tuple(place) for place in places)
