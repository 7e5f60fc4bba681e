"""What constrains one sampled token: plain data that the plan carries to the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.sampling_params import SamplingParams


@dataclass(frozen=True)
class RowRules:
    """What the rules need to know of one sampled row."""

    params: SamplingParams
    context: Sequence[int] = ()
    """Prompt and output so far; only read when `params.needs_context`."""
    num_prompt_tokens: int = 0
    held_back_ids: Sequence[int] = ()
    """End-of-text and stop ids while fewer than min_tokens tokens are generated."""
    bad_word_ids: Sequence[Sequence[int]] = ()
    """Token sequences that must not be completed."""
