"""Commands, events and records are plain data: msgpack carries them unchanged."""

import msgspec
import pytest

from workbench.engine.messages import Abort, Command, Event, Preempt, RequestFinished, SetLimits, Submit, TokenEvent
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import (
    BlockState,
    BlockStatus,
    Decision,
    Explanation,
    FinishReason,
    PoolSnapshot,
    Reason,
    RequestMetrics,
    RequestState,
    RequestStatus,
    StepRecord,
)

PARAMS = SamplingParams(temperature=0.5, top_k=3, seed=2**63 - 1, stop=["a", "b"], stop_token_ids=[1], max_tokens=None)
METRICS = RequestMetrics(1.0, 0.5, 0.25, None, None, 0.1, 2.0, 3, 4, 1)
BLOCK = BlockState(3, BlockStatus.ACTIVE, 2, 16, ("r1", "r2"), 5)
RECORD = StepRecord(
    step_id=9,
    started_s=1.5,
    schedule_s=0.1,
    execute_s=0.2,
    update_s=0.3,
    num_scheduled_tokens=4,
    num_prefill_tokens=3,
    num_decode_tokens=1,
    max_num_batched_tokens=16,
    num_running=1,
    num_waiting=0,
    num_blocks=8,
    num_free_blocks=7,
    num_active_blocks=1,
    num_cached_blocks=0,
    requests=(RequestState("r1", RequestStatus.RUNNING, 3, 1, 3, 1, 1, 1, False, 0, 1.25),),
    block_changes=(BLOCK,),
    explanations=(Explanation("r2", Decision.DEFERRED, Reason.NO_FREE_BLOCKS, {"needed_blocks": 3, "free_blocks": 1}),),
    epoch=77,
)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Submit("r1", (1, 2, 3), PARAMS, 0.5), Command),
        (Abort("r1"), Command),
        (Preempt("r1"), Command),
        (SetLimits(16, 4, True), Command),
        (TokenEvent("r1", 4, (5, 6), "né", 2), Event),
        (RequestFinished("r1", FinishReason.STOP, "", METRICS, stop_reason=7), Event),
        (RequestFinished("r1", FinishReason.ERROR, "", METRICS, error="no room", error_type="EngineError"), Event),
        (RECORD, StepRecord),
        (PoolSnapshot(9, 16, (BLOCK,)), PoolSnapshot),
    ],
)
def test_message_survives_msgpack(message, kind):
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind) == message


@pytest.mark.parametrize("message", [Submit("r1", (1,), PARAMS, 0.5), RECORD, METRICS, BLOCK, PARAMS])
def test_message_is_frozen(message):
    field = message.__struct_fields__[0]
    with pytest.raises(AttributeError):
        setattr(message, field, None)


def test_step_duration_is_the_sum_of_its_parts():
    assert RECORD.duration_s == pytest.approx(0.6)
