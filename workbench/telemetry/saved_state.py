"""A `LiveState` as plain data, so that a saved run goes on with the very keys, colours and ages it had."""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np

from workbench.telemetry.cache_lookups import NO_LOOKUPS, CacheLookups
from workbench.telemetry.live_drafts import LiveDrafts
from workbench.telemetry.live_requests import LiveRequest, SlotPool, StandingDecision
from workbench.telemetry.live_state import BLOCK_DTYPE, LiveState, TokenRate
from workbench.telemetry.records import RequestState, TransferKind

_MOST_KEYS: Final = 1 << 31


class SavedRequest(msgspec.Struct, frozen=True):
    """A living request."""

    key: int
    slot: int | None
    state: RequestState
    decision: StandingDecision | None = None
    preemption: StandingDecision | None = None
    preempted_s: float | None = None


class SavedState(msgspec.Struct, frozen=True):
    """Everything of a state that later steps build upon."""

    step_id: int
    blocks: tuple[tuple[int, int, int, int, int, int, int], ...]
    """The fields of `live_state.BLOCK_DTYPE` for each block in order."""
    further_owners: tuple[tuple[int, tuple[int, ...]], ...]
    requests: tuple[SavedRequest, ...]
    named: tuple[str, ...]
    """Ids, in the order in which views name them."""
    next_key: int
    free_slots: tuple[int, ...]
    next_slot: int
    num_moved: dict[TransferKind, int]
    rate_steps: tuple[tuple[float, int], ...]
    busy_since_s: float | None
    lookups: CacheLookups = NO_LOOKUPS
    draft_steps: tuple[tuple[float, int, int], ...] = ()


def save_state(state: LiveState) -> SavedState:
    """Return a state as data."""
    requests, rate = state.request_list, state.rate
    return SavedState(
        step_id=state.step_id,
        blocks=tuple(state.blocks.tolist()),
        further_owners=tuple(state.further_owners.items()),
        requests=tuple(_save_request(request) for request in requests.by_id.values()),
        named=tuple(request.state.request_id for request in requests.named),
        next_key=requests.next_key,
        free_slots=tuple(requests.slots.free),
        next_slot=requests.slots.next_slot,
        num_moved=dict(state.traffic.num_blocks),
        rate_steps=tuple(rate.steps),
        busy_since_s=rate.busy_since_s,
        lookups=state.lookups,
        draft_steps=tuple(state.drafts.steps),
    )


def restore_state(saved: SavedState, epoch: int, block_size: int) -> LiveState:
    """Return the state that was saved.

    Raises:
        ValueError: a number does not fit its field, or a name has no request.
        KeyError: as above.
    """
    state = LiveState()
    state.reset(epoch, len(saved.blocks), block_size)
    state.step_id = saved.step_id
    try:
        state.set_blocks(np.array(list(saved.blocks), BLOCK_DTYPE))
    except OverflowError as error:
        raise ValueError(str(error)) from error
    state.further_owners = {block: keys for block, keys in saved.further_owners if 0 <= block < state.num_blocks}
    _check_names(saved)
    requests = state.request_list
    requests.by_id = {each.state.request_id: _restore_request(each) for each in saved.requests}
    requests.named = [requests.by_id[name] for name in saved.named]
    requests.next_key = saved.next_key
    requests.slots = SlotPool(saved.free_slots, saved.next_slot)
    state.traffic.num_blocks |= saved.num_moved
    state.lookups = saved.lookups
    state.rate = TokenRate(saved.rate_steps, saved.busy_since_s)
    state.drafts = LiveDrafts(saved.draft_steps)
    return state


def _check_names(saved: SavedState) -> None:
    if not 1 <= saved.next_key <= _MOST_KEYS or not 0 <= saved.next_slot <= _MOST_KEYS:
        raise ValueError(f"next_key={saved.next_key}, next_slot={saved.next_slot}: more than {_MOST_KEYS} requests")
    for request in saved.requests:
        if not 1 <= request.key < saved.next_key:
            raise ValueError(f"key {request.key} was never given: the next one is {saved.next_key}")
    slots = [*saved.free_slots, *(request.slot for request in saved.requests if request.slot is not None)]
    if not all(0 <= slot < saved.next_slot for slot in slots):
        raise ValueError(f"a colour was never given: the next one is {saved.next_slot}")


def _save_request(request: LiveRequest) -> SavedRequest:
    preempted_s = request.preempted_s if math.isfinite(request.preempted_s) else None
    return SavedRequest(request.key, request.slot, request.state, request.decision, request.preemption, preempted_s)


def _restore_request(saved: SavedRequest) -> LiveRequest:
    return LiveRequest(
        saved.key,
        saved.slot,
        saved.state,
        saved.decision,
        saved.preemption,
        version=1,
        preempted_s=-math.inf if saved.preempted_s is None else saved.preempted_s,
    )
