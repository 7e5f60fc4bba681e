"""Limits of one step and of one context, as the scheduler and its parts see them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StepLimits:
    """The first two may change between two steps."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    """Prompt and output of one request, in tokens."""
