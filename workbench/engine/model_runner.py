"""Runs the model over a plan: batch → forward → logits → sampled tokens. Owns the KV storage."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch

from kernels.ops import AttentionMetadata, Ops, kv_cache_shapes
from workbench.engine.batch import ForwardBatch, build_batch
from workbench.engine.beam_search import Candidate
from workbench.engine.candidates import best_candidates
from workbench.engine.choice import choose_tokens
from workbench.engine.drafter import Drafter
from workbench.engine.logprobs import compute_logprobs
from workbench.engine.messages import TokenLogprobs
from workbench.engine.scheduler_output import ModelRunnerOutput, SchedulerOutput
from workbench.models.config import ModelConfig
from workbench.telemetry.records import BlockTransfer, TransferKind

PROMPT_LOGPROBS_ROWS = 64
"""Prompt rows whose logits are in memory at once."""
MEASURED_BLOCKS: Final = 16
"""Blocks that are copied to find out how long that takes."""

_NOTHING: Final = torch.empty(0)

KVCache = list[tuple[torch.Tensor, torch.Tensor]]


class CausalLM(Protocol):
    """The part of a model that the runner needs."""

    @property
    def ops(self) -> Ops:
        """What it computes with."""

    def forward(
        self, token_ids: torch.Tensor, metadata: Sequence[AttentionMetadata], kv_caches: KVCache
    ) -> torch.Tensor:
        """Token ids int64 [T] → hidden states [T, hidden] after the final norm; writes the KV cache.

        metadata: one for each of the model's `layer_groups`.
        """

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [S, hidden] → logits float32 [S, vocab]."""


@dataclass(frozen=True)
class ComputedStep:
    """The `DraftContext` of one step."""

    transfers: Sequence[tuple[str, torch.Tensor]]
    metadata: tuple[AttentionMetadata, ...] = ()
    token_ids: torch.Tensor = _NOTHING
    hidden: torch.Tensor = _NOTHING


class ModelRunner:
    """Owns tensors and never sees a `Request`."""

    def __init__(
        self, model: CausalLM, config: ModelConfig, num_blocks: int, block_size: int, num_swap_blocks: int = 0
    ) -> None:
        """Allocate keys and values, float32, in one tensor each; a layer of it is as in `kv_cache_shapes`.

        Groups of layers share the room: a block belongs to one of them.

        As much again for `num_swap_blocks` blocks in host memory.
        """
        self._model = model
        self._vocab_size = config.vocab_size
        self._max_positions = config.max_position_embeddings
        self._num_groups = len(config.layer_groups)
        self._block_size = block_size
        self._device: tuple[torch.Tensor, ...]
        self._host: tuple[torch.Tensor, ...]
        self._device, self._host = (
            tuple(
                _storage((config.layers_per_block, *shape))
                for shape in kv_cache_shapes(count, block_size, config.num_kv_heads, config.head_size)
            )
            for count in (num_blocks, num_swap_blocks)
        )
        places = {layer: place for group in config.layer_groups for place, layer in enumerate(group.layers)}
        self._kv_caches: KVCache = [
            (self._device[0][places[layer]], self._device[1][places[layer]]) for layer in range(config.num_layers)
        ]

    def execute(self, plan: SchedulerOutput, drafter: Drafter) -> ModelRunnerOutput:
        """Make the plan's transfers, compute its tokens, fill their slots and sample where it says so.

        drafter: knows what the plan's drafted tokens were drawn from; is shown what is computed.
        """
        transfers = self._transfer(plan.transfers)
        if not plan.scheduled:
            drafter.follow(ComputedStep(transfers))
            return ModelRunnerOutput()
        batch = build_batch(plan, self._block_size)
        hidden = self._model.forward(batch.token_ids, batch.metadata, self._kv_caches)
        drafter.follow(ComputedStep(transfers, batch.metadata, batch.token_ids, hidden))
        prompt_logprobs = self._prompt_logprobs(plan, batch, hidden)
        if not batch.sampled:
            return ModelRunnerOutput(prompt_logprobs=prompt_logprobs)
        logits = self._model.compute_logits(hidden[batch.sampled_rows])
        candidates = self._candidates(batch, logits)
        choice = choose_tokens(batch.sampled, logits, drafter.drafts, self._vocab_size)
        return ModelRunnerOutput(choice.token_ids, choice.logprobs, prompt_logprobs, candidates)

    def _transfer(self, transfers: Sequence[BlockTransfer]) -> list[tuple[str, torch.Tensor]]:
        """Copy blocks in the order given; neighbours of one kind go together. Return them so, as int64 [P, 2]."""
        groups = [
            (kind, torch.tensor([(transfer.source_id, transfer.target_id) for transfer in group]))
            for kind, group in itertools.groupby(transfers, key=lambda transfer: transfer.kind)
        ]
        for kind, pairs in groups:
            sources = self._host if kind is TransferKind.SWAP_IN else self._device
            targets = self._host if kind is TransferKind.SWAP_OUT else self._device
            for source, target in zip(sources, targets, strict=True):
                self._model.ops.copy_blocks(source, target, pairs)
        return [(kind.value, pairs) for kind, pairs in groups]

    def measure_transfer_s(self) -> float:
        """Return the seconds that copying one block to host memory takes, measured; 0 without swap space."""
        count = min(self._host[0].shape[1], self._device[0].shape[1], MEASURED_BLOCKS)
        if count == 0:
            return 0.0
        transfers = [BlockTransfer(TransferKind.SWAP_OUT, i, i, "") for i in range(count)]
        self._transfer(transfers)
        started = time.perf_counter()
        self._transfer(transfers)
        return (time.perf_counter() - started) / count

    def measure_step_s(self, row_counts: Sequence[int]) -> dict[int, float]:
        """Return the seconds of a step by its number of rows, measured beside the KV storage: the best of two."""
        row_counts = [count for count in row_counts if count <= self._max_positions]
        num_blocks = -(-max(row_counts) // self._block_size)
        caches = [
            (torch.zeros((num_blocks, *keys.shape[1:])), torch.zeros((num_blocks, *values.shape[1:])))
            for keys, values in self._kv_caches
        ]
        return {count: min(self._time_rows(count, caches) for _ in range(2)) for count in row_counts}

    def _time_rows(self, count: int, caches: KVCache) -> float:
        """Seconds of a pass over one context of so many tokens, with logits for all of them."""
        positions = torch.arange(count)
        metadata = AttentionMetadata(
            query_start=torch.tensor([0, count], dtype=torch.int32),
            seq_lens=torch.tensor([count], dtype=torch.int32),
            block_tables=torch.arange(-(-count // self._block_size), dtype=torch.int32).unsqueeze(0),
            slot_mapping=positions,
            positions=positions,
        )
        started = time.perf_counter()
        hidden = self._model.forward(torch.zeros(count, dtype=torch.int64), [metadata] * self._num_groups, caches)
        self._model.compute_logits(hidden)
        return time.perf_counter() - started

    @staticmethod
    def _candidates(batch: ForwardBatch, logits: torch.Tensor) -> dict[str, tuple[Candidate, ...]]:
        """What each beam may go on with."""
        ends = itertools.accumulate(item.num_sampled_rows for item in batch.sampled)
        rows = [end - 1 for end, item in zip(ends, batch.sampled, strict=True) if item.num_candidates]
        items = [item for item in batch.sampled if item.num_candidates]
        if not items:
            return {}
        found = best_candidates(
            logits[rows],
            [item.num_candidates for item in items],
            [item.rules[0].held_back_ids if item.rules else () for item in items],
        )
        return {item.request_id: one for item, one in zip(items, found, strict=True)}

    def _prompt_logprobs(
        self, plan: SchedulerOutput, batch: ForwardBatch, hidden: torch.Tensor
    ) -> dict[str, tuple[TokenLogprobs, ...]]:
        """Log-probabilities of the plan's prompt targets, a slice at a time to bound the memory of logits."""
        results: dict[str, tuple[TokenLogprobs, ...]] = {}
        for item, start in zip(plan.scheduled, batch.metadata[0].query_start.tolist(), strict=False):
            found: list[TokenLogprobs] = []
            for offset in range(0, len(item.prompt_targets), PROMPT_LOGPROBS_ROWS):
                targets = item.prompt_targets[offset : offset + PROMPT_LOGPROBS_ROWS]
                first = start + item.first_target_row + offset
                logits = self._model.compute_logits(hidden[first : first + len(targets)])
                count = item.sampling_params.prompt_logprobs or 0
                found += compute_logprobs(logits, targets, [count] * len(targets))
            if found:
                results[item.request_id] = tuple(found)
        return results

    def release(self) -> None:
        """Let go of the KV storage."""
        self._kv_caches, self._device, self._host = [], (), ()


def _storage(shape: tuple[int, ...]) -> torch.Tensor:
    """Return zeros in large pages, which numpy asks for: scattered blocks are found faster.

    The zeros are written, not promised, or the first steps would wait for the system to find the pages.
    """
    storage = np.empty(shape, np.float32)
    storage.fill(0.0)
    return torch.from_numpy(storage)
