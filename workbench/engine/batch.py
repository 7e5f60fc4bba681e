"""The plan of a step as tensors: rows of tokens without padding, and where their context lies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernels.ops import AttentionMetadata
from workbench.engine.scheduler_output import ScheduledRequest, SchedulerOutput


@dataclass(frozen=True)
class ForwardBatch:
    """Everything the model needs for one step, and which rows are sampled."""

    request_ids: tuple[str, ...]
    """Requests in row order."""
    token_ids: torch.Tensor
    """int64 [T]."""
    metadata: AttentionMetadata
    sampled: tuple[ScheduledRequest, ...]
    """Requests that sample a token in this step."""
    sampled_rows: torch.Tensor
    """int64 [S]: the last row of each of them."""


def build_batch(plan: SchedulerOutput, block_size: int) -> ForwardBatch:
    """Turn a plan with at least one scheduled request into tensors.

    Args:
        plan: what the scheduler decided.
        block_size: tokens per KV block.
    """
    scheduled = plan.scheduled
    counts = np.array([item.num_tokens for item in scheduled], dtype=np.int32)
    query_start = np.zeros(len(scheduled) + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start[1:])
    starts = np.array([item.start_position for item in scheduled], dtype=np.int32)

    tables = np.zeros((len(scheduled), max(len(item.block_table) for item in scheduled)), dtype=np.int32)
    for row, item in enumerate(scheduled):
        tables[row, : len(item.block_table)] = item.block_table

    owner = np.repeat(np.arange(len(scheduled)), counts)
    positions = np.arange(query_start[-1], dtype=np.int64) + np.repeat(starts - query_start[:-1], counts)
    slots = tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    token_ids = np.concatenate([np.array(item.token_ids, dtype=np.int64) for item in scheduled])
    samples = np.array([item.samples for item in scheduled], dtype=bool)

    return ForwardBatch(
        request_ids=tuple(item.request_id for item in scheduled),
        token_ids=torch.from_numpy(token_ids),
        metadata=AttentionMetadata(
            query_start=torch.from_numpy(query_start),
            seq_lens=torch.from_numpy(starts + counts),
            block_tables=torch.from_numpy(tables),
            slot_mapping=torch.from_numpy(slots),
            positions=torch.from_numpy(positions),
        ),
        sampled=tuple(item for item in scheduled if item.samples),
        sampled_rows=torch.from_numpy((query_start[1:][samples] - 1).astype(np.int64)),
    )
