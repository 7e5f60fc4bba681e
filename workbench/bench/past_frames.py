"""How long any step of a long history takes to show: 10,000 steps, 1,024 blocks, 64 requests."""

from __future__ import annotations

import random
import statistics
import time
from typing import Final

from workbench.server.state_frame import FrameBuilder, Words
from workbench.telemetry.frames import encode
from workbench.telemetry.history import History
from workbench.telemetry.live_state import LiveState
from workbench.telemetry.recorder import Recorder
from workbench.telemetry.records import BlockState, BlockStatus, RequestState, RequestStatus, StepRecord

NUM_STEPS: Final = 10_000
NUM_BLOCKS: Final = 1024
NUM_REQUESTS: Final = 64
BLOCK_SIZE: Final = 16
NUM_LOOKS: Final = 200


def past_frame_figures(words: Words, num_steps: int = NUM_STEPS) -> dict[str, float]:
    """Return the time to fold a step, and to rebuild and encode the frame of a random one."""
    recorder, state = Recorder(), LiveState()
    history = History(recorder)
    state.reset(1, NUM_BLOCKS, BLOCK_SIZE)
    history.begin(state)
    fold_s = 0.0
    for step_id in range(num_steps):
        record = decode_step(step_id)
        recorder.record(record)
        started_s = time.perf_counter()
        state.apply(record)
        history.note(record, state)
        fold_s += time.perf_counter() - started_s
    frames, looks = FrameBuilder(words), []
    for step_id in random.Random(0).choices(range(num_steps), k=NUM_LOOKS):
        started_s = time.perf_counter()
        encode(frames.past(history.state_at(step_id), instance=1))
        looks.append(time.perf_counter() - started_s)
    return {
        "fold_step_us": 1e6 * fold_s / num_steps,
        "past_frame_p50_ms": 1000 * statistics.median(looks),
        "past_frame_p95_ms": 1000 * statistics.quantiles(looks, n=20)[-1],
        "past_frame_max_ms": 1000 * max(looks),
    }


def decode_step(step_id: int) -> StepRecord:
    """Return a step in which every request writes one token into a block of its own."""
    each = NUM_BLOCKS // NUM_REQUESTS
    index, filled = step_id // BLOCK_SIZE % each, step_id % BLOCK_SIZE + 1
    return StepRecord(
        step_id=step_id,
        started_s=0.1 * step_id,
        schedule_s=0.001,
        execute_s=0.09,
        update_s=0.001,
        num_scheduled_tokens=NUM_REQUESTS,
        num_prefill_tokens=0,
        num_decode_tokens=NUM_REQUESTS,
        max_num_batched_tokens=512,
        num_running=NUM_REQUESTS,
        num_waiting=0,
        num_blocks=NUM_BLOCKS,
        num_free_blocks=0,
        num_active_blocks=NUM_BLOCKS,
        num_cached_blocks=0,
        requests=tuple(
            RequestState(
                request_id=f"r{number}",
                status=RequestStatus.RUNNING,
                num_prompt_tokens=1,
                num_output_tokens=step_id,
                num_computed_tokens=step_id + 1,
                num_blocks=each,
                num_scheduled_tokens=1,
                num_new_tokens=1,
                is_prefill=False,
                num_preemptions=0,
                arrival_time_s=0.0,
                family=f"r{number}",
            )
            for number in range(NUM_REQUESTS)
        ),
        block_changes=tuple(
            BlockState(number * each + index, BlockStatus.ACTIVE, 1, filled, (f"r{number}",), index)
            for number in range(NUM_REQUESTS)
        ),
        explanations=(),
        epoch=1,
    )
