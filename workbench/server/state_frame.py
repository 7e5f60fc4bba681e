"""A `LiveState` as a frame of the live codec: what a client misses, or everything after one past step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from workbench.telemetry.frames import Frame
from workbench.telemetry.live_requests import LiveRequest, StandingDecision
from workbench.telemetry.live_state import BLOCK_DTYPE, Figures, LiveState
from workbench.telemetry.live_traffic import Movement
from workbench.telemetry.records import CacheMiss, Explanation, RequestStatus, TransferKind

MOVEMENTS_SHOWN: Final = 8
"""Movements in a full frame of the present."""


class Words(Protocol):
    """What stands behind the codes of step records, in the visitor's language."""

    def explain(self, explanation: Explanation) -> str:
        """A decision of the scheduler as one sentence with its numbers."""

    def explain_miss(self, miss: CacheMiss | None, differs_at: int | None = None) -> str:
        """Why no more of a context was found in the cache; empty when nothing was missing."""


class FrameBuilder:
    """Builds the frames of one server process."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def live(
        self,
        state: LiveState,
        base_version: int,
        now_s: float,
        *,
        instance: int,
        first_step: int,
        service: dict[str, Any] | None,
    ) -> Frame:
        """Return what brings a client from `base_version` to the state; 0 asks for all of it.

        Args:
            state: the present.
            base_version: version of the state that the client holds.
            now_s: time for the rates, in seconds of `time.monotonic`.
            instance: of the server process.
            first_step: the oldest step that can be looked at, -1 for none.
            service: the engine's status and layout, when the client does not know them.
        """
        changed = state.changed_since(base_version) if base_version else None
        if changed is not None and len(changed) * (BLOCK_DTYPE.itemsize + 4) >= state.blocks.nbytes > 0:
            base_version, changed = 0, None
        movements = state.traffic.since(base_version)
        body = self._body(
            state, base_version, changed, movements if base_version else movements[-MOVEMENTS_SHOWN:], now_s
        )
        body["figures"]["first_step"] = first_step
        if service is not None:
            body["service"] = service
        return _frame(state, instance, state.version, base_version, changed, body)

    def past(self, state: LiveState, instance: int) -> Frame:
        """Return a full frame of a past state. It depends on the steps up to it and on nothing else."""
        latest = state.latest
        now_s = 0.0 if latest is None else latest.started_s + latest.duration_s
        body = self._body(state, 0, None, state.traffic.in_step(state.step_id), now_s)
        return _frame(state, instance, 0, 0, None, body)

    def _body(
        self,
        state: LiveState,
        base_version: int,
        changed: npt.NDArray[np.intp] | None,
        movements: Iterable[Movement],
        now_s: float,
    ) -> dict[str, Any]:
        return {
            "figures": _figures(state.figures(now_s), state.traffic.num_blocks),
            "requests": [self._request_row(request) for request in state.named if request.version > base_version],
            "living": [request.key for request in state.named],
            "shared": _shared_runs(state, changed),
            "transfers": [
                [movement.step_id, movement.kind.value, movement.request_id, movement.block_ids]
                for movement in movements
            ],
        }

    def _request_row(self, request: LiveRequest) -> list[Any]:
        """One row in the order of `frames.REQUEST_FIELDS`."""
        state = request.state
        return [
            request.key,
            state.request_id,
            state.status.value,
            request.slot,
            state.num_prompt_tokens,
            state.num_output_tokens,
            state.num_computed_tokens,
            state.num_blocks,
            state.is_prefill and state.status is RequestStatus.RUNNING,
            state.num_preemptions,
            state.family or state.request_id,
            state.num_sequences,
            state.priority,
            state.num_cached_tokens,
            self._words.explain_miss(state.cache_miss, state.differs_at),
            state.num_swapped_blocks,
            state.most_tokens,
            self._decision(request.decision),
            self._decision(request.preemption),
        ]

    def _decision(self, standing: StandingDecision | None) -> list[Any] | None:
        """The codes and numbers of a decision, and the same as a sentence."""
        if standing is None:
            return None
        told = standing.explanation
        return [
            told.decision.value,
            told.reason.value,
            told.numbers,
            told.cause_request_id,
            standing.since_step,
            self._words.explain(told),
        ]


def _frame(
    state: LiveState,
    instance: int,
    version: int,
    base_version: int,
    changed: npt.NDArray[np.intp] | None,
    body: dict[str, Any],
) -> Frame:
    return Frame(
        instance=instance,
        epoch=state.epoch,
        version=version,
        base_version=base_version,
        step_id=state.step_id,
        num_blocks=state.num_blocks,
        block_size=state.block_size,
        block_ids=None if changed is None else changed.astype(np.uint32),
        blocks=state.blocks if changed is None else state.blocks[changed],
        body=body,
    )


def _figures(figures: Figures, moved: Mapping[TransferKind, int]) -> dict[str, float]:
    memory = {
        "swap_blocks": figures.num_swap_blocks,
        "free_swap_blocks": figures.num_free_swap_blocks,
        "waste_slots": figures.internal_waste_slots,
        "waste_blocks": figures.external_waste_blocks,
        "contiguous_blocks": figures.contiguous_blocks,
        "looked_up_tokens": figures.lookups.num_looked_up_tokens,
        "cached_tokens": figures.lookups.num_cached_tokens,
        "draft_tokens": figures.num_draft_tokens,
        "accepted_tokens": figures.num_accepted_tokens,
        **{kind.value: count for kind, count in moved.items()},
    }
    return {
        "running": figures.num_running,
        "waiting": figures.num_waiting,
        "tokens_per_s": round(figures.tokens_per_s, 2),
        "active_blocks": figures.num_active_blocks,
        "cached_blocks": figures.num_cached_blocks,
        "step_ms": round(figures.step_s * 1000, 2),
        **{name: value for name, value in memory.items() if value},
    }


def _shared_runs(state: LiveState, changed: npt.NDArray[np.intp] | None) -> list[list[int]]:
    """Return the further owners of the blocks in a frame, one list for a run of blocks that share them alike."""
    shared = state.further_owners
    blocks = sorted(shared) if changed is None else [int(block) for block in changed if int(block) in shared]
    runs: list[list[int]] = []
    for block in blocks:
        last = runs[-1] if runs else None
        if last is not None and block == last[0] + last[1] and tuple(last[2:]) == shared[block]:
            last[1] += 1
        else:
            runs.append([block, 1, *shared[block]])
    return runs
