"""An engine door without an engine: its steps come from a `SimulatedEngine`, when the test says so."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.telemetry.simulated_engine import SimulatedEngine
from workbench.telemetry.records import PoolSnapshot, StepRecord


class FakeStatus(msgspec.Struct, frozen=True):
    """The fields of `engine.service.ServiceStatus`."""

    state: str = "ready"
    phase: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    error: str | None = None
    error_traceback: str | None = None
    model_name: str = "simulated"
    source_format: str = "none"
    dtype: str = "float32"
    backend: str = "none"
    device: str = "simulated device"
    notices: tuple[str, ...] = ()
    epoch: int = 1
    num_blocks: int = 64
    block_size: int = 16
    kv_cache_bytes: int = 64 * 368_640
    block_bytes: int = 368_640
    weight_bytes: int = 538_000_000
    max_model_len: int = 8192
    vocab_size: int = 49_152


class FakeDetails(msgspec.Struct, frozen=True):
    """The fields of `engine.service.BlockDetails`."""

    block_id: int
    status: str
    ref_count: int
    num_filled: int
    request_ids: tuple[str, ...]
    logical_index: int
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    last_step_id: int


class FakeRecorder:
    """`latest` and `snapshot()` of the simulated engine."""

    def __init__(self) -> None:
        self.engine = SimulatedEngine()
        self.latest: StepRecord | None = None

    def snapshot(self) -> PoolSnapshot:
        return self.engine.snapshot()


class FakeService:
    """`step()` runs one simulated step and tells the subscribers, as the engine thread would."""

    def __init__(self, num_blocks: int = 64, seed: int = 0) -> None:
        self.recorder = FakeRecorder()
        self.listeners: list[Callable[[StepRecord], None]] = []
        self.status = FakeStatus()
        self.load(num_blocks, seed)
        self.status = msgspec.structs.replace(self.status, epoch=1)

    @property
    def engine(self) -> SimulatedEngine:
        return self.recorder.engine

    def load(self, num_blocks: int = 64, seed: int = 0) -> None:
        """A new engine in a new epoch."""
        self.recorder.engine = SimulatedEngine(num_blocks=num_blocks, seed=seed)
        self.recorder.latest = None
        self.status = msgspec.structs.replace(self.status, epoch=self.status.epoch + 1, num_blocks=num_blocks)

    def step(self, tell: bool = True) -> StepRecord:
        record = self.recorder.latest = self.engine.step()
        for listener in self.listeners if tell else ():
            listener(record)
        return record

    def subscribe(self, listener: Callable[[StepRecord], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def pool_snapshot(self) -> PoolSnapshot:
        return self.engine.snapshot()

    def block_details(self, block_id: int) -> FakeDetails:
        block = self.engine.state(block_id)
        tokens = tuple(f" t{i}" for i in range(block.num_filled))
        return FakeDetails(
            block_id,
            block.status.name.lower(),
            block.ref_count,
            block.num_filled,
            tuple(self.engine.owners[block_id]),
            block.logical_index,
            tuple(range(block.num_filled)),
            tokens,
            self.engine.step_id,
        )
