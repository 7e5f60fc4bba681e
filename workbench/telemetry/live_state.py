"""The present state of every block and request, folded from step records: what the live views show.

`LiveState` is plain data with one owner: whoever drains the records calls `apply`. It knows nothing
of threads, sockets or clocks. Each block and each part of the rest carries the version at which it
last changed, so that "what is new since version v" is a comparison, whatever a client missed.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from workbench.telemetry.cache_lookups import NO_LOOKUPS, CacheLookups
from workbench.telemetry.live_drafts import LiveDrafts
from workbench.telemetry.live_requests import LiveRequest, LiveRequests
from workbench.telemetry.live_traffic import LiveTraffic
from workbench.telemetry.records import BlockState, BlockStatus, RequestStatus, StepRecord

BLOCK_DTYPE: Final = np.dtype(
    [
        ("status", "u1"),
        ("num_filled", "u1"),
        ("ref_count", "<u2"),
        ("owner", "<u4"),
        ("logical_index", "<i4"),
        ("since_step", "<u4"),
        ("changed_step", "<u4"),
    ]
)
"""One block, 20 bytes. `owner` is a request key, 0 for none. `since_step` is when the block came
into its present status and owner (allocated, or last used when cached); `changed_step` is when
anything of it last changed."""
_CELL: Final = struct.Struct("<BBHIiII")
"""The same, for the bytes of one block."""

RATE_WINDOW_S: Final = 3.0
"""Output tokens per second are a mean over this many seconds."""


@dataclass(frozen=True)
class Figures:
    """Numbers of the header strip after the last step. Rates are per second, times seconds."""

    num_running: int
    num_waiting: int
    tokens_per_s: float
    num_active_blocks: int
    num_cached_blocks: int
    step_s: float
    num_swap_blocks: int = 0
    num_free_swap_blocks: int = 0
    internal_waste_slots: int = 0
    external_waste_blocks: int = 0
    contiguous_blocks: int = 0
    """What an allocator without paging would have reserved for the running requests."""
    lookups: CacheLookups = NO_LOOKUPS
    """Since the epoch began, as far as its records were seen."""
    num_draft_tokens: int = 0
    """Drafted tokens that were verified within the last seconds (`live_drafts.WINDOW_S`)."""
    num_accepted_tokens: int = 0


class LiveState:
    """Blocks, requests and header figures of one engine. An epoch is one loaded engine."""

    def __init__(self) -> None:
        self.epoch = 0
        self.block_size = 0
        self.version = 0
        self.step_id = -1
        self.set_blocks(np.zeros(0, BLOCK_DTYPE))
        self.further_owners: dict[int, tuple[int, ...]] = {}
        """Keys of the owners after the first, for the blocks that have some."""
        self.traffic = LiveTraffic()
        self.lookups = NO_LOOKUPS
        self.request_list = LiveRequests()
        """All requests, their colours and keys."""
        self._block_versions: npt.NDArray[np.uint32] = np.zeros(0, np.uint32)
        self.rate = TokenRate()
        self.drafts = LiveDrafts()
        self.latest: StepRecord | None = None
        """The newest record."""

    def copy(self) -> LiveState:
        """Return the same state, to go on by itself. Costs 24 bytes for each block, and the requests."""
        twin = LiveState()
        twin.epoch, twin.block_size = self.epoch, self.block_size
        twin.version, twin.step_id = self.version, self.step_id
        twin.set_blocks(self.blocks.copy())
        twin._block_versions = self._block_versions.copy()
        twin.further_owners = dict(self.further_owners)
        twin.traffic, twin.request_list = self.traffic.copy(), self.request_list.copy()
        twin.lookups, twin.rate, twin.latest = self.lookups, self.rate.copy(), self.latest
        twin.drafts = self.drafts.copy()
        return twin

    def set_blocks(self, blocks: npt.NDArray[np.void]) -> None:
        """Take an array of `BLOCK_DTYPE` for the pool. It is written to from now on."""
        self.blocks = blocks
        self._bytes = blocks.view(np.uint8).data

    @property
    def requests(self) -> dict[str, LiveRequest]:
        """The requests that have not ended, by id."""
        return self.request_list.by_id

    @property
    def named(self) -> list[LiveRequest]:
        """Those that views name: running ones first, then the beginning of the queue."""
        return self.request_list.named

    @property
    def num_blocks(self) -> int:
        """Number of physical blocks, 0 before an engine is loaded."""
        return len(self.blocks)

    def reset(self, epoch: int, num_blocks: int, block_size: int) -> None:
        """Begin a new epoch: every block free, no request known. The version goes on rising."""
        self.epoch = epoch
        self.block_size = block_size
        self.version += 1
        self.step_id = -1
        self.set_blocks(np.zeros(num_blocks, BLOCK_DTYPE))
        self.blocks["logical_index"] = -1
        self._block_versions = np.full(num_blocks, self.version, np.uint32)
        self.further_owners = {}
        self.traffic = LiveTraffic()
        self.lookups = NO_LOOKUPS
        self.request_list = LiveRequests()
        self.rate = TokenRate()
        self.drafts = LiveDrafts()
        self.latest = None

    def apply(self, record: StepRecord) -> None:
        """Fold one step. Records of an epoch come in order; one that is already known is ignored."""
        if record.step_id <= self.step_id:
            return
        self.version += 1
        self.step_id = record.step_id
        self.request_list.apply(record, self.version)
        self.traffic.apply(record.transfers, record.step_id, self.version)
        self.lookups = self.lookups.after(record)
        for block in record.block_changes:
            self._write_block(block, record.step_id)
        self.rate.add(record.started_s + record.duration_s, sum(r.num_new_tokens for r in record.requests))
        self.drafts.apply(record)
        self.latest = record

    def keyframe(self, blocks: Iterable[BlockState], latest: StepRecord) -> None:
        """Take over a whole pool after records were lost. Living requests keep their colours.

        Args:
            blocks: every block that was ever in use, as of the end of the step `latest`.
            latest: the newest record.
        """
        self.version += 1
        self.step_id = latest.step_id
        self.request_list.apply(latest, self.version)
        self.traffic.apply(latest.transfers, latest.step_id, self.version)
        self.lookups = self.lookups.after(latest)
        self.latest = latest
        for block in blocks:
            self._write_block(block, latest.step_id)

    def changed_since(self, version: int) -> npt.NDArray[np.intp]:
        """Return the ids of the blocks that changed after `version`, ascending."""
        return np.flatnonzero(self._block_versions > version)

    def figures(self, now_s: float) -> Figures:
        """Return the header's numbers at `now_s` (seconds of `time.monotonic`)."""
        latest = self.latest
        if latest is None:
            return Figures(0, 0, 0.0, 0, 0, 0.0)
        num_draft_tokens, num_accepted_tokens = self.drafts.at(now_s)
        return Figures(
            num_running=latest.num_running,
            num_waiting=latest.num_waiting,
            tokens_per_s=self.rate.at(now_s),
            num_active_blocks=latest.num_active_blocks,
            num_cached_blocks=latest.num_cached_blocks,
            step_s=latest.duration_s,
            num_swap_blocks=latest.num_swap_blocks,
            num_free_swap_blocks=latest.num_free_swap_blocks,
            internal_waste_slots=latest.internal_waste_slots,
            external_waste_blocks=latest.external_waste_blocks,
            contiguous_blocks=self._contiguous_blocks(latest),
            lookups=self.lookups,
            num_draft_tokens=num_draft_tokens,
            num_accepted_tokens=num_accepted_tokens,
        )

    def _contiguous_blocks(self, record: StepRecord) -> int:
        running = [state for state in record.requests if state.status is RequestStatus.RUNNING]
        return sum(state.num_sequences * -(-state.most_tokens // self.block_size) for state in running)

    def _write_block(self, block: BlockState, step_id: int) -> None:
        # Packed as bytes: numpy takes ten times as long for the fields of one record.
        place = block.block_id * BLOCK_DTYPE.itemsize
        status, num_filled, ref_count, owner, logical_index, since_step, _ = _CELL.unpack_from(self._bytes, place)
        before = (status, num_filled, ref_count, owner, logical_index)
        active = block.status is BlockStatus.ACTIVE
        owners = [self.requests[name].key for name in block.request_ids if name in self.requests] if active else []
        key, further = owners[0] if owners else 0, tuple(owners[1:])
        values = (int(block.status), block.num_filled, min(block.ref_count, 0xFFFF), key, block.logical_index)
        if values == before and further == self.further_owners.get(block.block_id, ()):
            return
        now = max(step_id, 0)
        _CELL.pack_into(self._bytes, place, *values, now if (values[0], key) != (status, owner) else since_step, now)
        self._block_versions[block.block_id] = self.version
        if further:
            self.further_owners[block.block_id] = further
        else:
            self.further_owners.pop(block.block_id, None)


class TokenRate:
    """Output tokens per second over the last `RATE_WINDOW_S` seconds."""

    def __init__(self, steps: Iterable[tuple[float, int]] = (), busy_since_s: float | None = None) -> None:
        """Go on from the ends of steps (seconds) with their tokens, and the time at which the work began."""
        self.steps = deque(steps)
        self.busy_since_s = busy_since_s

    def copy(self) -> TokenRate:
        """Return the same rate, to go on by itself."""
        return TokenRate(self.steps, self.busy_since_s)

    def add(self, ended_s: float, num_tokens: int) -> None:
        """Count the tokens of a step."""
        self._forget(ended_s)
        if not self.steps:
            self.busy_since_s = ended_s
        self.steps.append((ended_s, num_tokens))

    def at(self, now_s: float) -> float:
        """Return the rate at a time. Changes nothing: what is shown must not depend on who looked before."""
        if self.busy_since_s is None:
            return 0.0
        span = min(RATE_WINDOW_S, max(0.5, now_s - self.busy_since_s))
        return sum(n for ended_s, n in self.steps if ended_s > now_s - RATE_WINDOW_S) / span

    def _forget(self, now_s: float) -> None:
        while self.steps and self.steps[0][0] <= now_s - RATE_WINDOW_S:
            self.steps.popleft()
