"""How each conversation is answered: a mix of temperatures and lengths, drawn from a seed."""

from __future__ import annotations

import random
from typing import Final

from workbench.sampling_params import MAX_SEED, SamplingParams
from workbench.speculation.train.parts import Part

TEMPERATURES: Final = (0.0, 0.3, 0.7, 1.0)
WEIGHTS: Final = {Part.TRAIN: (40, 20, 20, 20), Part.HELD_OUT: (70, 10, 10, 10)}
"""Speculation is used at temperature 0 most of all, and is judged there."""
TOP_P: Final = (1.0, 0.95)
MAX_TOKENS: Final = (64, 128, 192, 256, 384)
MAX_TOKENS_WEIGHTS: Final = (5, 10, 15, 50, 20)


def sampling_for(part: Part, prompt_id: int, turn: int, seed: int) -> SamplingParams:
    """Return the parameters of one answer. All answers of a conversation have one temperature."""
    rng = random.Random(f"{seed} {part} {prompt_id}")
    temperature = rng.choices(TEMPERATURES, WEIGHTS[part])[0]
    top_p = rng.choice(TOP_P)
    own = random.Random(f"{seed} {part} {prompt_id} {turn}")
    return SamplingParams(
        temperature=temperature,
        top_p=top_p,
        max_tokens=own.choices(MAX_TOKENS, MAX_TOKENS_WEIGHTS)[0],
        seed=own.randint(0, MAX_SEED),
    )
