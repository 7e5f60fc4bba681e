"""Steps in a form for timelines: a row for each step, and an entry for each request in it. Little-endian.

::

    header 32 B   magic "WBHS", u16 format version 1, u16 reserved, u32 instance, u32 epoch,
                  i32 first step in this chunk (-1 none), u32 num_steps, u32 num_entries, u32 json_bytes
    rows          48 B each: u32 step_id, f32 duration_ms, f64 started_s, u32 scheduled, prefill and
                  decode tokens, u32 budget, u16 running, u16 waiting, u32 active_blocks,
                  u32 cached_blocks, u32 first_entry (index of the step's first entry)
    entries       12 B each: u32 key, u32 tokens computed (0: only waited), u8 kind, u8 flags, u16 new_tokens
    JSON          {"requests": [[key, id, slot, family, priority, arrival_s], …]} of every key above

`kind` is one of the five below, `flags` are the bits of `LiveRequest.happened`. Requests that were
never admitted have entries only as far as views name them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from workbench.telemetry.live_requests import LiveRequest
from workbench.telemetry.live_state import LiveState
from workbench.telemetry.records import RequestStatus, StepRecord

MAGIC: Final = b"WBHS"
FORMAT_VERSION: Final = 1
HEADER: Final = struct.Struct("<4sHHIIiIII")
ROW: Final = struct.Struct("<IfdIIIIHHII")
FIRST_ENTRY: Final = struct.Struct("<I")
ENTRY: Final = struct.Struct("<IIBBH")

_ENTRY_DTYPE: Final = np.dtype([("key", "<u4"), ("rest", "V8")])

WAITING: Final = 0
PREFILL: Final = 1
DECODE: Final = 2
PREEMPTED: Final = 3
SWAPPED: Final = 4
_KINDS: Final = {RequestStatus.PREEMPTED: PREEMPTED, RequestStatus.SWAPPED: SWAPPED}
_MOST_U16: Final = 0xFFFF


@dataclass(frozen=True)
class StepRow:
    """One step, packed as far as it can be before its place among others is known."""

    step_id: int
    packed: bytes
    """The row without its last field."""
    entries: bytes

    @property
    def num_entries(self) -> int:
        """Requests that the step has an entry for."""
        return len(self.entries) // ENTRY.size

    def unpack_entries(self) -> list[tuple[int, int, int, int, int]]:
        """Return key, tokens, kind, flags and new tokens of each request."""
        return list(ENTRY.iter_unpack(self.entries))


def make_row(record: StepRecord, state: LiveState) -> StepRow:
    """Return the row of the step that was just folded into `state`."""
    packed = ROW.pack(
        record.step_id,
        record.duration_s * 1000,
        record.started_s,
        record.num_scheduled_tokens,
        record.num_prefill_tokens,
        record.num_decode_tokens,
        record.max_num_batched_tokens,
        min(record.num_running, _MOST_U16),
        min(record.num_waiting, _MOST_U16),
        record.num_active_blocks,
        record.num_cached_blocks,
    )
    told = (*state.request_list.named, *state.request_list.ended)
    return StepRow(record.step_id, packed, b"".join(map(_pack_entry, told)))


def _pack_entry(request: LiveRequest) -> bytes:
    state = request.state
    tokens = state.num_scheduled_tokens
    kind = _KINDS.get(state.status, WAITING)
    if kind == WAITING and tokens:
        kind = PREFILL if state.is_prefill else DECODE
    return ENTRY.pack(request.key, tokens, kind, request.happened, min(state.num_new_tokens, _MOST_U16))


def keys_in(rows: Iterable[StepRow]) -> list[int]:
    """Return the keys of all requests in some rows, ascending."""
    entries = np.frombuffer(b"".join(row.entries for row in rows), _ENTRY_DTYPE)
    keys: list[int] = np.unique(entries["key"]).tolist()
    return keys


def encode_chunk(instance: int, epoch: int, rows: Sequence[StepRow], requests: Iterable[list[Any]]) -> bytes:
    """Return rows that follow each other as one message; `requests` are the lists of its JSON part."""
    text = json.dumps({"requests": list(requests)}, separators=(",", ":"), ensure_ascii=False).encode()
    parts, num_entries = [], 0
    for row in rows:
        parts += [row.packed, FIRST_ENTRY.pack(num_entries)]
        num_entries += row.num_entries
    first_step = rows[0].step_id if rows else -1
    header = HEADER.pack(MAGIC, FORMAT_VERSION, 0, instance, epoch, first_step, len(rows), num_entries, len(text))
    return b"".join((header, *parts, *(row.entries for row in rows), text))
