"""What a step leaves behind: frozen, msgpack-ready data, and the reasons for each decision.

Every view, metric and trace is drawn from these records. They carry counts, ids and times, no
tensors; a `StepRecord` together with its predecessors is enough to rebuild the state of the pool.
"""

from __future__ import annotations

import enum

import msgspec


class RequestStatus(enum.StrEnum):
    """Where a request stands. The last three are terminal."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"
    """Preempted, its context kept in host memory."""
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more will happen to the request."""
        return self in (RequestStatus.FINISHED, RequestStatus.ABORTED, RequestStatus.FAILED)


class FinishReason(enum.StrEnum):
    """Why a request ended."""

    STOP = "stop"
    """End-of-text token, a stop token id or a stop text."""
    LENGTH = "length"
    """max_tokens or the context length was reached."""
    ABORT = "abort"
    """The client went away or pressed Stop."""
    ERROR = "error"
    ENGINE_RELOAD = "engine_reload"


class Decision(enum.StrEnum):
    """What the scheduler decided about one request in one step."""

    ADMITTED = "admitted"
    RESUMED = "resumed"
    CHUNKED = "chunked"
    DEFERRED = "deferred"
    PREEMPTED = "preempted"
    FAILED = "failed"


class Reason(enum.StrEnum):
    """The rule behind a decision. `Explanation.numbers` carries the quantities that it compared."""

    ROOM = "room"
    """Blocks, budget and a sequence slot were free. numbers: needed_blocks, free_blocks, tokens."""
    PAST_HEAD = "past_head"
    """Admitted, as ROOM, before earlier ones that do not fit. numbers: those of ROOM, overtaken."""
    MORE_URGENT = "more_urgent"
    """Preempted so that a more urgent one can start (numbers: those of NO_FREE_BLOCKS), or given fewer of the step's
    tokens (numbers: tokens, wanted_tokens); and priority, urgent_priority."""
    TOKEN_BUDGET = "token_budget"
    """The step's budget is spent, or covers only a part. numbers: tokens, wanted_tokens, budget."""
    NO_FREE_BLOCKS = "no_free_blocks"
    """numbers: needed_blocks, free_blocks."""
    NO_FREE_RUN = "no_free_run"
    """Contiguous layout: no run of free blocks is long enough. numbers: needed_blocks, free_blocks, longest_run."""
    MAX_NUM_SEQS = "max_num_seqs"
    """numbers: running, max_num_seqs, and wanted_seqs where a request brings several answers."""
    BEHIND_HEAD = "behind_head"
    """An earlier request could not be admitted. numbers: position."""
    PREEMPTED_THIS_STEP = "preempted_this_step"
    """Nothing is admitted in a step that had to preempt. numbers: num_preempted."""
    OUTGREW_POOL = "outgrew_pool"
    """Alone in the engine and still too large. numbers: needed_blocks, num_blocks."""
    STANDSTILL = "standstill"
    """Preempted because all running requests wait for a beam that does not fit. numbers: those of NO_FREE_BLOCKS."""
    REQUESTED = "requested"
    """Preempted because somebody asked for it. numbers: free_blocks, freed_blocks."""


class Explanation(msgspec.Struct, frozen=True):
    """One decision with the rule that made it and the numbers that the rule compared.

    A preemption also says what became of the context: `swapped_blocks` when it was kept in host memory; in the
    preemption mode `auto`, `recompute_us` and `swap_us`, the estimates that were compared, and
    `free_swap_blocks` when the swap space was too small. A resumption from host memory says `swapped_blocks`.
    """

    request_id: str
    decision: Decision
    reason: Reason
    numbers: dict[str, int]
    cause_request_id: str | None = None
    """For a preemption: the request that needed the blocks."""


class TransferKind(enum.StrEnum):
    """Between which memories the contents of a block move."""

    COPY = "copy"
    """From block to block, because someone writes into a block that others share (copy-on-write)."""
    SWAP_OUT = "swap_out"
    """From a block to host memory."""
    SWAP_IN = "swap_in"
    """From host memory to a block."""


class BlockTransfer(msgspec.Struct, frozen=True):
    """One block's contents copied at the beginning of a step. Ids count blocks of the pool or of the swap space."""

    kind: TransferKind
    source_id: int
    target_id: int
    request_id: str


class CacheMiss(enum.StrEnum):
    """Why a context's cached beginning is no longer than it is."""

    DISABLED = "disabled"
    """Prefix caching is off."""
    BYPASSED = "bypassed"
    """The request wants logprobs of its prompt, which have to be computed."""
    SHORTER_THAN_BLOCK = "shorter_than_block"
    """Only full blocks before the last token are shared."""
    EVICTED = "evicted"
    """It was there and had to make room."""
    DIFFERS = "differs"
    """No cached context goes on like this one; the number says at which token they part."""


class BlockStatus(enum.IntEnum):
    """State of one physical block."""

    FREE = 0
    CACHED = 1
    """Reference count 0, content kept for reuse (prefix caching)."""
    ACTIVE = 2


class BlockState(msgspec.Struct, frozen=True, array_like=True):
    """One physical block after a step. Only blocks that changed in the step are recorded."""

    block_id: int
    status: BlockStatus
    ref_count: int
    num_filled: int
    """Slots that hold a computed token, 0 … block_size."""
    request_ids: tuple[str, ...]
    """Owners, the oldest first; several when the block is shared."""
    logical_index: int
    """Position of the block in its owners' tables, or in the context that it is cached for; -1 when free."""


class RequestState(msgspec.Struct, frozen=True):
    """One live request after a step, and what the step did for it."""

    request_id: str
    status: RequestStatus
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_blocks: int
    num_scheduled_tokens: int
    """Tokens computed for it in this step, 0 when it only waited."""
    num_new_tokens: int
    """Tokens sampled for it in this step."""
    is_prefill: bool
    """Whether the scheduled tokens were prompt (or recomputed context), not one decode token."""
    num_preemptions: int
    arrival_time_s: float
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    """Tokens of its context that were found in the cache when it was last admitted."""
    cache_miss: CacheMiss | None = None
    """Why they are not more; None when all that could be shared was found, or before admission."""
    differs_at: int | None = None
    """For `CacheMiss.DIFFERS`: the first position whose token differs from what was cached."""
    num_swapped_blocks: int = 0
    """Blocks of the swap space that hold its context."""
    family: str = ""
    """Id of the request whose answers these are: several sequences (n answers, beams) share it."""
    num_sequences: int = 1
    """Sequences that it stands for: answers that have not parted from it yet included."""
    priority: int = 0
    most_tokens: int = 0
    """Tokens that it may come to hold: what an allocator without paging has to reserve."""
    num_draft_tokens: int = 0
    """Drafted tokens that were verified in this step; they count as scheduled."""
    num_accepted_tokens: int = 0
    """Those of them that stand; they come first of the new tokens."""


class StepRecord(msgspec.Struct, frozen=True):
    """Everything that one engine step did. Times are seconds of `time.monotonic`."""

    step_id: int
    started_s: float
    schedule_s: float
    execute_s: float
    update_s: float
    num_scheduled_tokens: int
    num_prefill_tokens: int
    num_decode_tokens: int
    max_num_batched_tokens: int
    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    num_active_blocks: int
    num_cached_blocks: int
    requests: tuple[RequestState, ...]
    """Running, waiting and preempted requests, and those that ended in this step."""
    block_changes: tuple[BlockState, ...]
    explanations: tuple[Explanation, ...]
    epoch: int = 0
    """Changes with every loaded engine, so that a reader notices a restart or a reload."""
    num_looked_up_tokens: int = 0
    """Tokens of the contexts that were admitted in this step, while prefix caching is on."""
    num_cached_tokens: int = 0
    """Those of them that were found in the cache and not computed."""
    transfers: tuple[BlockTransfer, ...] = ()
    """Contents that moved before the step's tokens were computed, in this order."""
    num_swap_blocks: int = 0
    """Blocks of the swap space."""
    num_free_swap_blocks: int = 0
    internal_waste_slots: int = 0
    """Slots of held blocks that hold no token: reserved and not used."""
    external_waste_blocks: int = 0
    """Free blocks that the first waiting request cannot use since they lie in runs too short for it (contiguous)."""
    draft_s: float = 0.0
    """Time for drafting tokens, before they were scheduled."""

    @property
    def duration_s(self) -> float:
        """Wall time of the step in seconds."""
        return self.draft_s + self.schedule_s + self.execute_s + self.update_s


class PoolSnapshot(msgspec.Struct, frozen=True):
    """State of the whole pool at the end of a step: the keyframe that deltas build upon."""

    step_id: int
    block_size: int
    blocks: tuple[BlockState, ...]
    epoch: int = 0


class RequestMetrics(msgspec.Struct, frozen=True):
    """Latency of one request, in seconds. None where the request never got that far.

    TTFT: arrival to first token. ITL: gaps between consecutive token deliveries. TPOT: mean time
    per output token after the first. E2E: arrival to end. Queue: arrival to first scheduling.
    """

    arrival_time_s: float
    queue_time_s: float | None
    ttft_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    tpot_s: float | None
    e2e_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_preemptions: int
    num_cached_tokens: int = 0
    """Prompt tokens that were found in the cache when the request was first admitted."""
    num_draft_tokens: int = 0
    """Drafted tokens that were verified."""
    num_accepted_tokens: int = 0
    """Those of them that the answer holds."""
