"""Binary frames of the live feed, version 2, little-endian. `frames.js` is the browser's decoder.

::

    offset  type   field
    0       4 B    magic "WBLF"
    4       u16    format version, 2
    6       u8     kind: 0 full, 1 delta
    7       u8     reserved, 0
    8       u32    instance     random for each server process: a restarted server is another epoch
    12      u32    epoch        of the engine within that process; 0 before one is loaded
    16      u32    version      of the state that the client holds after this frame
    20      u32    base_version that a delta builds upon; 0 in a full frame
    24      i32    step_id      -1 before the first step
    28      u32    num_blocks   of the pool
    32      u16    block_size
    34      u16    reserved, 0
    36      u32    num_records
    40      u32    json_bytes
    44      block records, then the JSON part in UTF-8

A block record is 20 bytes (`live_state.BLOCK_DTYPE`): status u8, num_filled u8, ref_count u16, owner
u32 (request key, 0 none), logical_index i32, since_step u32, changed_step u32. A full frame has one
for each block in order; in a delta each is preceded by its block id, u32.

The JSON part::

    figures    {name: number}; those of memory and of the prefix cache that are 0 are left out
    requests   one row of `REQUEST_FIELDS` for each request; in a delta, for those that changed
    living     the keys of all requests that the client should hold now: running, then the queue
    shared     [first block, number of blocks, key, …] for each run of records in this frame whose
               blocks have these owners besides the one in the record; all others have none
    transfers  [step id, kind, request id, blocks] for each movement after the base version, as
               `live_traffic.Movement`; the last few in a full frame
    service    the engine's status and layout; a delta leaves it out when it did not change

A decision in a row is [decision, reason, {name: number}, causing request id, first step, sentence]
or null.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from workbench.errors import WorkbenchError
from workbench.telemetry.live_state import BLOCK_DTYPE

MAGIC: Final = b"WBLF"
FORMAT_VERSION: Final = 2
KIND_FULL: Final = 0
KIND_DELTA: Final = 1
HEADER: Final = struct.Struct("<4sHBBIIIIiIHHII")
DELTA_DTYPE: Final = np.dtype([("block_id", "<u4"), *BLOCK_DTYPE.descr])
REQUEST_FIELDS: Final = (
    "key",
    "id",
    "status",
    "slot",
    "num_prompt_tokens",
    "num_output_tokens",
    "num_computed_tokens",
    "num_blocks",
    "is_prefill",
    "num_preemptions",
    "family",
    "num_sequences",
    "priority",
    "num_cached_tokens",
    "cache_miss",
    "num_swapped_blocks",
    "most_tokens",
    "decision",
    "preemption",
)
"""`cache_miss` is in words. `decision` and `preemption` are null but for requests that are held back
and those that were preempted within the last seconds."""


class FrameError(WorkbenchError):
    """The bytes are not a frame that this decoder understands."""


@dataclass(frozen=True)
class Frame:
    """One decoded frame. `block_ids` is None in a full frame: the records are all blocks in order."""

    instance: int
    epoch: int
    version: int
    base_version: int
    step_id: int
    num_blocks: int
    block_size: int
    block_ids: npt.NDArray[np.uint32] | None
    blocks: npt.NDArray[np.void]
    """Records of `BLOCK_DTYPE`."""
    body: dict[str, Any]

    @property
    def is_full(self) -> bool:
        """Whether the frame stands alone."""
        return self.block_ids is None


def encode(frame: Frame) -> bytes:
    """Return the bytes of `frame`."""
    text = json.dumps(frame.body, separators=(",", ":"), ensure_ascii=False).encode()
    if frame.block_ids is None:
        kind, records = KIND_FULL, frame.blocks
    else:
        kind, records = KIND_DELTA, np.empty(len(frame.blocks), DELTA_DTYPE)
        records["block_id"] = frame.block_ids
        for name in BLOCK_DTYPE.names or ():
            records[name] = frame.blocks[name]
    header = HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        kind,
        0,
        frame.instance,
        frame.epoch,
        frame.version,
        frame.base_version,
        frame.step_id,
        frame.num_blocks,
        frame.block_size,
        0,
        len(records),
        len(text),
    )
    return header + records.tobytes() + text


def decode(data: bytes) -> Frame:
    """Return the frame in `data`.

    Raises:
        FrameError: not a frame, another format version, truncated, or inconsistent in itself.
    """
    if len(data) < HEADER.size:
        raise FrameError(f"{len(data)} bytes are shorter than the header of {HEADER.size}")
    (
        magic,
        fmt,
        kind,
        _,
        instance,
        epoch,
        version,
        base,
        step_id,
        num_blocks,
        block_size,
        _,
        num_records,
        json_bytes,
    ) = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise FrameError(f"starts with {magic!r}, not {MAGIC!r}")
    if fmt != FORMAT_VERSION:
        raise FrameError(f"frame format {fmt} is not {FORMAT_VERSION}: reload the page to match the server")
    if kind not in (KIND_FULL, KIND_DELTA):
        raise FrameError(f"kind {kind} is neither full (0) nor delta (1)")
    dtype = DELTA_DTYPE if kind == KIND_DELTA else BLOCK_DTYPE
    expected = HEADER.size + num_records * dtype.itemsize + json_bytes
    if len(data) != expected:
        raise FrameError(f"{len(data)} bytes where the header announces {expected}")
    records = np.frombuffer(data, dtype, num_records, HEADER.size)
    if kind == KIND_FULL and num_records != num_blocks:
        raise FrameError(f"a full frame of {num_blocks} blocks holds {num_records} records")
    block_ids = records["block_id"] if kind == KIND_DELTA else None
    if block_ids is not None and num_records and int(block_ids.max()) >= num_blocks:
        raise FrameError(f"block {int(block_ids.max())} is outside the pool of {num_blocks}")
    return Frame(
        instance=instance,
        epoch=epoch,
        version=version,
        base_version=base,
        step_id=step_id,
        num_blocks=num_blocks,
        block_size=block_size,
        block_ids=block_ids,
        blocks=_without_ids(records) if kind == KIND_DELTA else records,
        body=_decode_body(data[expected - json_bytes :]),
    )


def _without_ids(records: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    blocks = np.empty(len(records), BLOCK_DTYPE)
    for name in BLOCK_DTYPE.names or ():
        blocks[name] = records[name]
    return blocks


def _decode_body(text: bytes) -> dict[str, Any]:
    try:
        body = json.loads(text.decode())
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise FrameError(f"the JSON part cannot be read: {error}") from error
    if not isinstance(body, dict):
        raise FrameError(f"the JSON part is a {type(body).__name__}, not an object")
    return body
