"""Reads what `/history/steps` answers, from the documented layout and not with the code that wrote it."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chunk:
    instance: int
    epoch: int
    first_step: int
    rows: list[tuple[Any, ...]]
    """The twelve fields of each row."""
    entries: list[list[tuple[int, int, int, int, int]]]
    """For each row: key, tokens, kind, flags, new tokens of each request."""
    requests: dict[int, list[Any]]
    """By key."""

    @property
    def steps(self) -> list[int]:
        return [row[0] for row in self.rows]


def read_chunk(data: bytes) -> Chunk:
    magic, version, _, instance, epoch, first, num_steps, num_entries, json_bytes = struct.unpack_from(
        "<4sHHIIiIII", data
    )
    assert (magic, version) == (b"WBHS", 1)
    rows = [struct.unpack_from("<IfdIIIIHHIII", data, 32 + 48 * i) for i in range(num_steps)]
    start = 32 + 48 * num_steps
    flat = [struct.unpack_from("<IIBBH", data, start + 12 * i) for i in range(num_entries)]
    assert len(data) == start + 12 * num_entries + json_bytes
    ends = [*(row[-1] for row in rows[1:]), num_entries]
    entries = [flat[row[-1] : end] for row, end in zip(rows, ends, strict=True)] if rows else []
    requests = json.loads(data[start + 12 * num_entries :])["requests"]
    return Chunk(instance, epoch, first, rows, entries, {request[0]: request for request in requests})
