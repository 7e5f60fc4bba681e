"""A saved run in the place of an engine: the same door, and nothing behind it that computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, Final, NoReturn

import msgspec

from workbench.config import BLOCK_SIZES, KV_LAYOUTS, EngineConfig
from workbench.engine.messages import BlockDetails, ServiceState, ServiceStatus
from workbench.errors import EngineStoppedError, ReplayFileError
from workbench.server.feed import LiveFeed, SavedRunFacts
from workbench.server.state_frame import Words
from workbench.telemetry.recorder import Recorder
from workbench.telemetry.records import BlockState, BlockStatus, PoolSnapshot, StepRecord
from workbench.telemetry.run_file import SavedRun, read_run

REPLAY_OF: Final = "Replay of"


class ReplayService:
    """What the page and the feed need of `engine.service.EngineService`, from a file."""

    is_replay = True

    def __init__(self, name: str, run: SavedRun, *, is_alone: bool = True) -> None:
        """Stand for the engine that left `run` in the file `name`, which may be a path.

        Args:
            name: of the file.
            run: what it holds.
            is_alone: whether there is no engine beside it, which is then said in the notices.

        Raises:
            ReplayFileError: the file tells of an engine that cannot have been.
        """
        header = run.header
        self.name = PurePath(name).name
        self._why = f"{REPLAY_OF} {self.name}: nothing is computed"
        self.run = run
        self.config = _config(name, run)
        self.recorder = Recorder(capacity=len(run.records))
        for record in run.records:
            self.recorder.record(record)
        try:
            status = msgspec.convert(header.status, ServiceStatus)
        except msgspec.ValidationError as error:
            raise ReplayFileError(f"{name} is damaged at line 1: {error}. Save or copy it again") from error
        self.status = msgspec.structs.replace(
            status,
            state=ServiceState.READY,
            phase="",
            error=None,
            error_traceback=None,
            # A run that was saved from a replay says of which one: that file is of no interest any more.
            notices=(
                *((self._why,) if is_alone else ()),
                *(notice for notice in status.notices if not notice.startswith(REPLAY_OF)),
            ),
            epoch=header.epoch,
            num_blocks=header.num_blocks,
            block_size=header.block_size,
        )

    @property
    def num_open_requests(self) -> int:
        """None are ever open."""
        return 0

    @property
    def tokenizer(self) -> NoReturn:
        """There is none. EngineStoppedError: always."""
        self._refuse()

    def feed(self, words: Words) -> LiveFeed:
        """Return the feed of the run, whose present is the end of its last step."""
        last = self.run.records[-1]
        ended_s = last.started_s + last.duration_s
        return LiveFeed(self, words, clock=lambda: ended_s, base=self.run.base, saved_run=self.facts())

    def facts(self) -> SavedRunFacts:
        """Return what a page says of the run beside its picture."""
        header = self.run.header
        return SavedRunFacts(
            name=self.name,
            first=header.first_step,
            last=header.first_step + header.num_steps - 1,
            model=self.status.model_name,
            saved_at=header.saved_at,
            is_redacted=header.is_redacted,
        )

    def start(self) -> None:
        """Nothing has to be loaded."""

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Return: the run is there."""

    def shutdown(self, timeout_s: float = 10.0) -> None:
        """Nothing has to be stopped."""

    def subscribe(self, listener: Callable[[StepRecord], None]) -> Callable[[], None]:
        """Take a listener that will never hear of a step."""
        return lambda: None

    def abort(self, request_id: str) -> None:
        """Do nothing: no request is open."""

    def submit(self, *_: Any, **__: Any) -> NoReturn:
        """EngineStoppedError: always."""
        self._refuse()

    def stream(self, *_: Any, **__: Any) -> NoReturn:
        """EngineStoppedError: always."""
        self._refuse()

    def preempt(self, request_id: str) -> NoReturn:
        """EngineStoppedError: always."""
        self._refuse()

    def set_limits(self, **_: Any) -> NoReturn:
        """EngineStoppedError: always."""
        self._refuse()

    def reload(self, config: EngineConfig, drain_s: float = 30.0) -> NoReturn:
        """EngineStoppedError: always."""
        self._refuse()

    def pool_snapshot(self) -> PoolSnapshot:
        """Return the state of every block after the last step."""
        step_id = self.run.records[-1].step_id
        blocks = tuple(self._block(block_id) for block_id in range(self.status.num_blocks))
        return PoolSnapshot(step_id, self.status.block_size, blocks, self.status.epoch)

    def block_details(self, block_id: int) -> BlockDetails:
        """Return one block after the last step; its tokens are not in the file. IndexError: no such block."""
        if not 0 <= block_id < self.status.num_blocks:
            raise IndexError(f"block_id={block_id} does not exist: blocks are 0 to {self.status.num_blocks - 1}")
        block = self._block(block_id)
        return BlockDetails(
            block_id=block_id,
            status=block.status,
            ref_count=block.ref_count,
            num_filled=block.num_filled,
            request_ids=block.request_ids,
            logical_index=block.logical_index,
            first_position=max(block.logical_index * self.status.block_size, -1),
            token_ids=(),
            tokens=(),
            num_bytes=self.status.block_bytes,
            step_id=self.run.records[-1].step_id,
        )

    def _block(self, block_id: int) -> BlockState:
        """The last that the steps tell of a block, or what it was before them."""
        for record in reversed(self.run.records):
            for change in record.block_changes:
                if change.block_id == block_id:
                    return change
        base = self.run.base
        status, num_filled, ref_count, owner, logical_index, *_ = base.blocks[block_id].tolist()
        names = {request.key: name for name, request in base.requests.items()}
        keys = (owner, *base.further_owners.get(block_id, ()))
        owners = tuple(names[key] for key in keys if key in names)
        return BlockState(block_id, BlockStatus(status), ref_count, num_filled, owners, logical_index)

    def _refuse(self) -> NoReturn:
        raise EngineStoppedError(f"{self._why}. Start the workbench without --replay to ask a model")


def open_replay(path: Path) -> ReplayService:
    """Read a run file and return its service. ReplayFileError: it cannot be read."""
    return ReplayService(str(path), read_run(path))


def _config(name: str, run: SavedRun) -> EngineConfig:
    header = run.header
    if header.kv_layout not in KV_LAYOUTS or header.block_size not in BLOCK_SIZES:
        raise ReplayFileError(
            f"{name} is damaged at line 1: kv_layout={header.kv_layout!r}, block_size={header.block_size}. "
            "Save or copy it again"
        )
    model = str(header.status.get("model_name") or EngineConfig.model)
    return EngineConfig(
        model=model, block_size=header.block_size, num_blocks=header.num_blocks, kv_layout=header.kv_layout
    )
