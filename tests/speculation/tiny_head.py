"""Heads for tiny models, for tests that need one but not its drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kernels.ops import DecoderLayerWeights
from kernels.weights import RowWeight
from workbench.engine.eagle_proposer import head_target
from workbench.models.llama import LlamaForCausalLM
from workbench.models.loaded import LoadedModel
from workbench.speculation.eagle import EagleWeights, wide_qkv
from workbench.speculation.eagle_file import write_head
from workbench.speculation.train.head_module import TrainingHead


def random_head(model: LlamaForCausalLM, num_tokens: int, seed: int = 0) -> TrainingHead:
    """A head with random weights of sensible size, that can draft `num_tokens` tokens."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = torch.randperm(model.config.vocab_size, generator=generator)[:num_tokens].sort().values
    head = TrainingHead.from_target(model, vocabulary)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(1 + 0.1 * noise)
            else:
                parameter.copy_(noise * parameter.shape[1] ** -0.5)
    return head


def runtime_head(head: TrainingHead, model: LlamaForCausalLM) -> EagleWeights:
    """The same weights in the layout of the model's ops, without a file between."""
    ops = model.ops

    def matrix(value: torch.Tensor) -> Any:
        return ops.prepare_weight(RowWeight(value.detach().clone()))

    return EagleWeights(
        token_norm=head.token_norm.detach(),
        fuse=matrix(head.fuse),
        layer=DecoderLayerWeights(
            input_norm=head.input_norm.detach(),
            qkv=matrix(wide_qkv(head.qkv, head.key_before)),
            output=matrix(head.output),
            post_attention_norm=head.post_attention_norm.detach(),
            gate_up=matrix(head.gate_up),
            down=matrix(head.down),
        ),
        final_norm=head.final_norm.detach(),
        embedding=model.weights.embedding,
        head=matrix(head.head),
        vocabulary=head.vocabulary,
    )


def write_random_head(path: Path, target: LoadedModel, num_tokens: int = 50, seed: int = 0) -> None:
    """Write a file with such a head for this model."""
    head = random_head(target.model, num_tokens, seed)
    write_head(path, {**head.state_dict(), "vocabulary": head.vocabulary}, head_target(target), {"seed": seed})
