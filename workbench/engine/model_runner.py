"""Runs the model over a plan: batch → forward → logits → sampled tokens. Owns the KV storage."""

from __future__ import annotations

from typing import Protocol

import torch

from kernels.ops import AttentionMetadata
from workbench.engine.batch import build_batch
from workbench.engine.sampler import SamplingBatch, sample
from workbench.engine.scheduler_output import ModelRunnerOutput, SchedulerOutput
from workbench.models.config import ModelConfig

KVCache = list[tuple[torch.Tensor, torch.Tensor]]


class CausalLM(Protocol):
    """The part of a model that the runner needs."""

    def forward(self, token_ids: torch.Tensor, metadata: AttentionMetadata, kv_caches: KVCache) -> torch.Tensor:
        """Token ids int64 [T] → hidden states [T, hidden] after the final norm; writes the KV cache."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [S, hidden] → logits float32 [S, vocab]."""


class ModelRunner:
    """Owns tensors and never sees a `Request`."""

    def __init__(self, model: CausalLM, config: ModelConfig, num_blocks: int, block_size: int) -> None:
        """Allocate per layer keys and values, each float32 [num_blocks, block_size, kv_heads, head_size]."""
        self._model = model
        self._vocab_size = config.vocab_size
        self._block_size = block_size
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_size)
        self._kv_caches: KVCache = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(config.num_layers)]

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the plan's tokens, fill their slots and sample where the plan says so."""
        if not plan.scheduled:
            return ModelRunnerOutput()
        batch = build_batch(plan, self._block_size)
        hidden = self._model.forward(batch.token_ids, batch.metadata, self._kv_caches)
        if not batch.sampled:
            return ModelRunnerOutput()
        logits = self._model.compute_logits(hidden[batch.sampled_rows])
        sampling = SamplingBatch.build(
            params=[item.sampling_params for item in batch.sampled],
            seeds=[item.seed for item in batch.sampled],
            positions=[item.output_position for item in batch.sampled],
            vocab_size=self._vocab_size,
        )
        token_ids = sample(logits, sampling).tolist()
        return ModelRunnerOutput(
            {item.request_id: (token_id,) for item, token_id in zip(batch.sampled, token_ids, strict=True)}
        )

    def release(self) -> None:
        """Let go of the KV storage."""
        self._kv_caches = []
