"""An engine door without an engine: its steps come from a `SimulatedEngine`, when the test says so."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.telemetry.simulated_engine import SimulatedEngine
from workbench.config import EngineConfig
from workbench.engine.messages import BlockDetails, ServiceState, ServiceStatus
from workbench.telemetry.records import BlockState, PoolSnapshot, StepRecord


class FakeRecorder:
    """`since` and `blocks_at` of the simulated engine; steps beyond the capacity are still in `records`."""

    def __init__(self) -> None:
        self.engine = SimulatedEngine()
        self.records: list[StepRecord] = []
        self.capacity = 10_000

    @property
    def first_step(self) -> int:
        return self.records[-self.capacity :][0].step_id if self.records else -1

    def since(self, step_id: int, most: int | None = None) -> list[StepRecord]:
        return [record for record in self.records[-self.capacity :] if record.step_id > step_id][:most]

    def blocks_at(self, step_id: int) -> dict[int, BlockState]:
        if step_id < self.first_step:
            raise KeyError(step_id)
        blocks: dict[int, BlockState] = {}
        for record in self.records:
            if record.step_id <= step_id:
                blocks |= {block.block_id: block for block in record.block_changes}
        return blocks


class FakeService:
    """`step()` runs one simulated step and tells the subscribers, as the engine thread would."""

    def __init__(self, num_blocks: int = 64, seed: int = 0, num_swap_blocks: int = 0) -> None:
        self.config = EngineConfig()
        self.num_swap_blocks = num_swap_blocks
        self.recorder = FakeRecorder()
        self.listeners: list[Callable[[StepRecord], None]] = []
        self.status = ServiceStatus(
            state=ServiceState.READY,
            model_name="simulated",
            source_format="none",
            dtype="float32",
            backend="no kernels",
            device="simulated",
            block_size=16,
            block_bytes=368_640,
            max_model_len=8192,
            vocab_size=49_152,
        )
        self.load(num_blocks, seed)

    @property
    def engine(self) -> SimulatedEngine:
        return self.recorder.engine

    def load(self, num_blocks: int = 64, seed: int = 0) -> None:
        """A new engine in a new epoch."""
        epoch = self.status.epoch + 1
        self.recorder.engine = SimulatedEngine(
            num_blocks=num_blocks, seed=seed, epoch=epoch, num_swap_blocks=self.num_swap_blocks
        )
        self.recorder.records = []
        self.status = msgspec.structs.replace(self.status, epoch=epoch, num_blocks=num_blocks)

    def step(self, tell: bool = True) -> StepRecord:
        record = self.engine.step()
        self.recorder.records.append(record)
        for listener in self.listeners if tell else ():
            listener(record)
        return record

    def subscribe(self, listener: Callable[[StepRecord], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def pool_snapshot(self) -> PoolSnapshot:
        return self.engine.snapshot()

    def block_details(self, block_id: int) -> BlockDetails:
        block = self.engine.state(block_id)
        first = max(0, block.logical_index) * self.engine.block_size
        return BlockDetails(
            block_id=block_id,
            status=block.status,
            ref_count=block.ref_count,
            num_filled=block.num_filled,
            request_ids=tuple(self.engine.owners[block_id]),
            logical_index=block.logical_index,
            first_position=first,
            token_ids=tuple(range(first, first + block.num_filled)),
            tokens=tuple(f" t{i}" for i in range(first, first + block.num_filled)),
            num_bytes=368_640,
            step_id=self.engine.step_id,
        )
