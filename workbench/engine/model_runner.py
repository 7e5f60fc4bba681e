"""Runs the model over a plan: batch → forward → logits → sampled tokens. Owns the KV storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from kernels.ops import AttentionMetadata, kv_cache_shapes
from workbench.engine.batch import ForwardBatch, build_batch
from workbench.engine.logit_rules import apply_rules
from workbench.engine.logprobs import compute_logprobs
from workbench.engine.messages import TokenLogprobs
from workbench.engine.sampler import SamplingBatch, sample
from workbench.engine.scheduler_output import ModelRunnerOutput, SchedulerOutput
from workbench.models.config import ModelConfig

PROMPT_LOGPROBS_ROWS = 64
"""Prompt rows whose logits are in memory at once."""

KVCache = list[tuple[torch.Tensor, torch.Tensor]]


class CausalLM(Protocol):
    """The part of a model that the runner needs."""

    def forward(
        self, token_ids: torch.Tensor, metadata: Sequence[AttentionMetadata], kv_caches: KVCache
    ) -> torch.Tensor:
        """Token ids int64 [T] → hidden states [T, hidden] after the final norm; writes the KV cache.

        metadata: one for each of the model's `layer_groups`.
        """

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [S, hidden] → logits float32 [S, vocab]."""


class ModelRunner:
    """Owns tensors and never sees a `Request`."""

    def __init__(self, model: CausalLM, config: ModelConfig, num_blocks: int, block_size: int) -> None:
        """Allocate keys and values, float32: all layers in one tensor each, a layer as in `kv_cache_shapes`."""
        self._model = model
        self._vocab_size = config.vocab_size
        self._num_layer_groups = len(config.layer_groups)
        self._block_size = block_size
        keys, values = kv_cache_shapes(num_blocks, block_size, config.num_kv_heads, config.head_size)
        self._keys, self._values = _storage((config.num_layers, *keys)), _storage((config.num_layers, *values))
        self._kv_caches: KVCache = list(zip(self._keys, self._values, strict=True))

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the plan's tokens, fill their slots and sample where the plan says so."""
        if not plan.scheduled:
            return ModelRunnerOutput()
        batch = build_batch(plan, self._block_size)
        metadata = [batch.metadata] * self._num_layer_groups
        hidden = self._model.forward(batch.token_ids, metadata, self._kv_caches)
        prompt_logprobs = self._prompt_logprobs(plan, batch, hidden)
        if not batch.sampled:
            return ModelRunnerOutput(prompt_logprobs=prompt_logprobs)
        logits = self._model.compute_logits(hidden[batch.sampled_rows])
        reported = [row for row, item in enumerate(batch.sampled) if item.sampling_params.logprobs is not None]
        raw_logits = logits[reported]
        constrained = [row for row, item in enumerate(batch.sampled) if item.rules is not None]
        if constrained:
            logits = logits.clone()
            apply_rules(logits, [(row, rules) for row in constrained if (rules := batch.sampled[row].rules)])
        sampling = SamplingBatch.build(
            params=[item.sampling_params for item in batch.sampled],
            seeds=[item.seed for item in batch.sampled],
            positions=[item.output_position for item in batch.sampled],
            vocab_size=self._vocab_size,
        )
        token_ids = sample(logits, sampling).tolist()
        counts = [batch.sampled[row].sampling_params.logprobs or 0 for row in reported]
        logprobs = compute_logprobs(raw_logits, [token_ids[row] for row in reported], counts)
        return ModelRunnerOutput(
            {item.request_id: (token_id,) for item, token_id in zip(batch.sampled, token_ids, strict=True)},
            {batch.sampled[row].request_id: (one,) for row, one in zip(reported, logprobs, strict=True)},
            prompt_logprobs,
        )

    def _prompt_logprobs(
        self, plan: SchedulerOutput, batch: ForwardBatch, hidden: torch.Tensor
    ) -> dict[str, tuple[TokenLogprobs, ...]]:
        """Log-probabilities of the plan's prompt targets, a slice at a time to bound the memory of logits."""
        results: dict[str, tuple[TokenLogprobs, ...]] = {}
        for item, start in zip(plan.scheduled, batch.metadata.query_start.tolist(), strict=False):
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
        self._keys, self._values = torch.empty(0), torch.empty(0)
        self._kv_caches = []


def _storage(shape: tuple[int, ...]) -> torch.Tensor:
    """Return zeros in large pages, which numpy asks for: scattered blocks are found faster.

    The zeros are written, not promised, or the first steps would wait for the system to find the pages.
    """
    storage = np.empty(shape, np.float32)
    storage.fill(0.0)
    return torch.from_numpy(storage)
