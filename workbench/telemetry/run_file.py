"""Saved runs: gzip-compressed JSON lines that can be looked at later, without a model.

::

    line 1   RunHeader: {"format": "workbench-run", "version": 1, …}
    line 2   SavedState: blocks, requests and colours before the first step
    line 3…  one StepRecord each, in order

Step records hold names of requests, counts and times; prompts and answers are not in them. A redacted
run has other names, too.
"""

from __future__ import annotations

import datetime
import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TypeVar, cast

import msgspec

from workbench.errors import ReplayFileError
from workbench.telemetry.live_state import LiveState
from workbench.telemetry.records import StepRecord
from workbench.telemetry.redaction import Redaction
from workbench.telemetry.saved_state import SavedState, restore_state, save_state

FORMAT: Final = "workbench-run"
VERSION: Final = 1
MOST_LINE_BYTES: Final = 256 << 20
MOST_STEPS: Final = 1_000_000
MOST_BLOCKS: Final = 1 << 22
CHUNK_BYTES: Final = 1 << 16
COMPRESSION_LEVEL: Final = 5
NOTE: Final = "Names of requests, counts and times of each step. Prompts and answers are not in this file."
REDACTED_NOTE: Final = (
    "Counts and times of each step; names of requests were replaced. Prompts and answers are not here."
)
_MOST_COUNT: Final = 0xFFFFFFFF
_MOST_SECONDS: Final = 1e9
T = TypeVar("T")


class RunHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    format: str
    version: int
    saved_at: str
    """Date and time in ISO 8601."""
    is_redacted: bool
    note: str
    status: dict[str, Any]
    """`engine.messages.ServiceStatus` of the engine that ran."""
    kv_layout: str
    epoch: int
    num_blocks: int
    block_size: int
    first_step: int
    num_steps: int


@dataclass(frozen=True)
class SavedRun:
    """A run as it was read."""

    header: RunHeader
    base: LiveState
    """The state before the first step."""
    records: list[StepRecord]


def write_run(
    base: LiveState, records: Sequence[StepRecord], status: dict[str, Any], kv_layout: str, *, is_redacted: bool = False
) -> Iterator[bytes]:
    """Yield the bytes of a run file, some at a time.

    Args:
        base: the state before the first record.
        records: at least one, without gaps.
        status: of the engine, as plain data.
        kv_layout: of the engine.
        is_redacted: whether to replace the names of requests.
    """
    redaction = Redaction() if is_redacted else None
    header = RunHeader(
        format=FORMAT,
        version=VERSION,
        saved_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        is_redacted=is_redacted,
        note=REDACTED_NOTE if is_redacted else NOTE,
        status=status if redaction is None else redaction.status(status),
        kv_layout=kv_layout,
        epoch=base.epoch,
        num_blocks=base.num_blocks,
        block_size=base.block_size,
        first_step=records[0].step_id,
        num_steps=len(records),
    )
    return _compress(msgspec.json.encode(line) for line in _lines(header, base, records, redaction))


def _lines(
    header: RunHeader, base: LiveState, records: Sequence[StepRecord], redaction: Redaction | None
) -> Iterator[RunHeader | SavedState | StepRecord]:
    yield header
    saved = save_state(base)
    yield saved if redaction is None else redaction.state(saved)
    for record in records:
        yield record if redaction is None else redaction.record(record)


def _compress(lines: Iterator[bytes]) -> Iterator[bytes]:
    press = zlib.compressobj(COMPRESSION_LEVEL, wbits=zlib.MAX_WBITS | 16)
    for line in lines:
        if data := press.compress(line + b"\n"):
            yield data
    yield press.flush()


def read_run(path: Path) -> SavedRun:
    """Read a run file, however large it is.

    Raises:
        ReplayFileError: it is missing, no run, of a newer version, truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            return read_run_file(file, str(path))
    except OSError as error:
        raise ReplayFileError(f"cannot read {path}: {error.strerror or error}; check the path") from error


def read_run_file(file: IO[bytes], name: str, most_bytes: int | None = None) -> SavedRun:
    """Read a run from an open file.

    Args:
        file: the compressed bytes.
        name: what messages call the file.
        most_bytes: limit on what it decompresses to, checked while it is decompressed; None for no limit.

    Raises:
        ReplayFileError: it is no run, of a newer version, truncated, damaged, or longer than `most_bytes`.
    """
    try:
        with gzip.open(file, "rb") as text:
            return _Reader(name, cast("IO[bytes]", text), most_bytes).read()
    except EOFError as error:
        raise ReplayFileError(f"{name} ends too early: it was not saved or copied to its end; save it again") from error
    except gzip.BadGzipFile as error:
        raise ReplayFileError(
            f"{name} is damaged or no gzip file ({error}): give a file that was saved on the Blocks tab"
        ) from error
    except zlib.error as error:
        raise ReplayFileError(f"{name} is damaged ({error}): save or copy it again") from error


class _Reader:
    """Reads one file, counting its lines for the messages."""

    def __init__(self, name: str, file: IO[bytes], most_bytes: int | None) -> None:
        self._name = name
        self._file = file
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._line = 0

    def read(self) -> SavedRun:
        header = self._header()
        base = self._base(header)
        records = [self._record(header, header.first_step + index) for index in range(header.num_steps)]
        if self._file.read(1):
            raise self._fault(f"more than the {header.num_steps} steps that the header announces")
        return SavedRun(header, base, records)

    def _header(self) -> RunHeader:
        line = self._next_line()
        try:
            kind = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            kind = None
        if not isinstance(kind, dict) or kind.get("format") != FORMAT:
            raise ReplayFileError(f"{self._name} is no saved run: its first line does not say {FORMAT!r}")
        version = kind.get("version")
        if version != VERSION:
            raise ReplayFileError(
                f"{self._name} has version {version!r}, this workbench reads {VERSION}: "
                "open it with the release that saved it, or a newer one"
            )
        header = self._decode(line, RunHeader)
        for name, value, most in (
            ("num_blocks", header.num_blocks, MOST_BLOCKS),
            ("num_steps", header.num_steps, MOST_STEPS),
            ("block_size", header.block_size, 255),
            ("epoch", header.epoch, _MOST_COUNT),
        ):
            if not 1 <= value <= most:
                raise self._fault(f"{name}={value} is outside 1 to {most}")
        if not 0 <= header.first_step <= _MOST_COUNT // 2:
            raise self._fault(f"first_step={header.first_step} is outside 0 to {_MOST_COUNT // 2}")
        return header

    def _base(self, header: RunHeader) -> LiveState:
        saved = self._decode(self._next_line(), SavedState)
        if len(saved.blocks) != header.num_blocks:
            raise self._fault(f"{len(saved.blocks)} blocks where the header announces {header.num_blocks}")
        if saved.step_id >= header.first_step:
            raise self._fault(f"step {saved.step_id} does not come before step {header.first_step}")
        try:
            return restore_state(saved, header.epoch, header.block_size)
        except (ValueError, KeyError) as error:
            raise self._fault(str(error)) from error

    def _record(self, header: RunHeader, step_id: int) -> StepRecord:
        record = self._decode(self._next_line(), StepRecord)
        if (record.step_id, record.epoch) != (step_id, header.epoch):
            raise self._fault(
                f"step {record.step_id} of epoch {record.epoch} where step {step_id} of epoch {header.epoch} comes next"
            )
        self._check_numbers(record)
        for block in record.block_changes:
            if not 0 <= block.block_id < header.num_blocks:
                raise self._fault(f"block {block.block_id} is outside the pool of {header.num_blocks}")
            if not (0 <= block.num_filled <= header.block_size and -1 <= block.logical_index <= _MOST_COUNT // 2):
                raise self._fault(f"block {block.block_id} has a fill or a place that no block can have")
        return record

    def _check_numbers(self, record: StepRecord) -> None:
        counts = [
            record.num_scheduled_tokens,
            record.num_prefill_tokens,
            record.num_decode_tokens,
            record.max_num_batched_tokens,
            record.num_running,
            record.num_waiting,
            record.num_active_blocks,
            record.num_cached_blocks,
            record.num_looked_up_tokens,
            record.num_cached_tokens,
            *(block.ref_count for block in record.block_changes),
            *(request.num_scheduled_tokens for request in record.requests),
            *(request.num_new_tokens for request in record.requests),
        ]
        if min(counts) < 0 or max(counts) > _MOST_COUNT:
            raise self._fault(f"a count is outside 0 to {_MOST_COUNT}")
        times = (record.started_s, record.schedule_s, record.execute_s, record.update_s)
        if not all(math.isfinite(time_s) and 0 <= time_s <= _MOST_SECONDS for time_s in times):
            raise self._fault(f"a time is outside 0 to {_MOST_SECONDS:g} seconds")

    def _next_line(self) -> bytes:
        self._line += 1
        line = self._file.readline(self._longest_line())
        self._num_bytes += len(line)
        if self._most_bytes is not None and self._num_bytes > self._most_bytes:
            raise ReplayFileError(
                f"{self._name} decompresses to more than {self._most_bytes >> 20} MiB: "
                "open it with python app.py --replay FILE, which has no limit"
            )
        if not line.endswith(b"\n"):
            if len(line) == MOST_LINE_BYTES:
                raise self._fault(f"longer than {MOST_LINE_BYTES} bytes")
            raise self._fault("the file ends here, but steps are missing")
        return line

    def _longest_line(self) -> int:
        """Bytes of a line that are read at most: one more than is allowed shows that there are more."""
        if self._most_bytes is None:
            return MOST_LINE_BYTES
        return min(MOST_LINE_BYTES, self._most_bytes - self._num_bytes + 1)

    def _decode(self, line: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(line, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._fault(str(error)) from error

    def _fault(self, what: str) -> ReplayFileError:
        return ReplayFileError(f"{self._name} is damaged at line {self._line}: {what}. Save or copy it again")
