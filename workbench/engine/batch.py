"""The plan of a step as tensors: rows of tokens without padding, and where their context lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
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
    metadata: tuple[AttentionMetadata, ...]
    """Of each group of layers; they differ in tables and slots."""
    sampled: tuple[ScheduledRequest, ...]
    """Requests that sample a token in this step."""
    sampled_rows: torch.Tensor
    """int64 [S]: the last row of each of them, before it those whose next token was drafted."""


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

    owner = np.repeat(np.arange(len(scheduled)), counts)
    positions = np.arange(query_start[-1], dtype=np.int64) + np.repeat(starts - query_start[:-1], counts)
    token_ids = np.concatenate([np.array(item.token_ids, dtype=np.int64) for item in scheduled])
    num_sampled = np.array([item.num_sampled_rows for item in scheduled])

    return ForwardBatch(
        request_ids=tuple(item.request_id for item in scheduled),
        token_ids=torch.from_numpy(token_ids),
        metadata=tuple(
            AttentionMetadata(
                query_start=torch.from_numpy(query_start),
                seq_lens=torch.from_numpy(starts + counts),
                block_tables=torch.from_numpy(tables),
                slot_mapping=torch.from_numpy(_slots(tables, owner, positions, block_size)),
                positions=torch.from_numpy(positions),
            )
            for tables in map(_tables, zip(*(item.block_tables for item in scheduled), strict=True))
        ),
        sampled=tuple(item for item in scheduled if item.samples),
        sampled_rows=torch.from_numpy(_last_rows(query_start[1:].astype(np.int64), num_sampled)),
    )


def _last_rows(ends: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The last `counts` rows before each of `ends` [S]."""
    starts = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(ends - counts - starts, counts)


def _tables(tables: Sequence[tuple[int, ...]]) -> npt.NDArray[np.int32]:
    """Block tables side by side [R, M]; what is behind a table, or a window, is never read."""
    padded = np.zeros((len(tables), max(map(len, tables))), dtype=np.int32)
    for row, table in enumerate(tables):
        padded[row, : len(table)] = table
    return padded


def _slots(
    tables: npt.NDArray[np.int32], owner: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], block_size: int
) -> npt.NDArray[np.int64]:
    """Where each token's key and value are written [T]."""
    return tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
