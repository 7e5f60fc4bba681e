"""Rotary position embedding (arXiv 2104.09864) and the ways to stretch it to longer contexts.

A model turns each pair of a head's dimensions by an angle `position * frequency`. The scalings
change the frequencies:

    default   frequency_i = theta ** (-2i / head_size)
    linear    all frequencies divided by `factor`: positions are interpolated (arXiv 2306.15595)
    dynamic   "NTK-aware": from the original length on, theta grows with the length of the context
    llama3    low frequencies divided by `factor`, high ones kept, a smooth passage between
              (Llama 3.1, arXiv 2407.21783)
    yarn      the same idea by number of rotations, and attention sharpened (arXiv 2309.00071)

Each step is computed in float32 in the order in which Hugging Face computes it, so that values agree.

The table is a function of the position alone; a token's key, once cached, stays right whatever
follows, and answers do not depend on how a prompt was chunked. For `dynamic`, a position p beyond
the original length L uses the theta that belongs to a context of p + 1 tokens. That is what
transformers does when it decodes token by token. A prompt longer than L that transformers takes
in at once differs: there *all* its positions use the theta of the whole prompt's length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from workbench.errors import ModelLoadError


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How frequencies are stretched. A type reads the fields that it knows; the rest keep their defaults."""

    rope_type: str = "default"
    """A key of `ROPE_TYPES`."""
    factor: float = 1.0
    """How many times longer the context becomes, at least 1."""
    original_length: int = 0
    """Positions before stretching (dynamic, llama3, yarn)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    """llama3: wavelengths above original / low are stretched, those below original / high are not."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    """yarn: dimensions that turn more often than beta_fast are kept, less often than beta_slow stretched."""
    truncate: bool = True
    """yarn: the bounds between those dimensions are whole numbers."""
    attention_factor: float = 1.0
    """yarn: cosines and sines are multiplied by this, so that scores grow by its square."""


def rotary_table(
    head_size: int,
    theta: float,
    num_positions: int,
    scaling: RopeScaling,
    divisors: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return cosines and sines of every position: float32 [num_positions, head_size].

    The first half of a row are the cosines, the second the sines.
    divisors: optional float32 [head_size // 2] that divide the frequencies (the `llama3` scaling as
    GGUF files hold it, worked out).
    """
    positions = torch.arange(num_positions)
    frequencies = ROPE_TYPES[scaling.rope_type](head_size, theta, positions, scaling)
    if divisors is not None:
        frequencies = frequencies / divisors
    angles = positions.float()[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=1) * scaling.attention_factor


def _exponents(head_size: int) -> torch.Tensor:
    return torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size


def _default(head_size: int, theta: float, positions: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    return 1.0 / (theta ** _exponents(head_size))


def _linear(head_size: int, theta: float, positions: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    return _default(head_size, theta, positions, scaling) / scaling.factor


def _dynamic(head_size: int, theta: float, positions: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Return a row of frequencies for each position: [num_positions, head_size // 2]."""
    original, factor = scaling.original_length, scaling.factor
    lengths = torch.clamp(positions + 1, min=original)
    growth = (factor * lengths / original) - (factor - 1)
    thetas = theta * growth ** (head_size / (head_size - 2))
    return 1.0 / (thetas[:, None] ** _exponents(head_size))


def _llama3(head_size: int, theta: float, positions: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    low, high, original = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_length
    frequencies = _default(head_size, theta, positions, scaling)
    wavelengths = 2 * math.pi / frequencies
    is_long = wavelengths > original / low
    is_between = ~(wavelengths < original / high) & ~is_long
    smooth = (original / wavelengths - low) / (high - low)
    blended = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    stretched = torch.where(is_long, frequencies / scaling.factor, frequencies)
    return torch.where(is_between, blended, stretched)


def _yarn(head_size: int, theta: float, positions: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    def dimension(rotations: float) -> float:
        """Return the (fractional) pair that turns this often within the original length."""
        turns = math.log(scaling.original_length / (rotations * 2 * math.pi))
        return (head_size * turns) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    width = (high - low) or 0.001  # both bounds may meet
    ramp = torch.clamp((torch.arange(head_size // 2, dtype=torch.float32) - low) / width, 0, 1)
    kept = 1 - ramp
    powers = theta ** _exponents(head_size)
    return 1.0 / (scaling.factor * powers) * (1 - kept) + 1.0 / powers * kept


ROPE_TYPES: Final[Mapping[str, Callable[[int, float, torch.Tensor, RopeScaling], torch.Tensor]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}
"""Frequencies [head_size // 2], or [num_positions, head_size // 2] where they depend on the position."""


# ------------------------------------------------------------------------- from configurations


def read_rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling]:
    """Return theta and scaling as a Hugging Face config.json states them.

    Understood are `rope_parameters` (transformers 5) and `rope_theta` with `rope_scaling` (before),
    the type under `rope_type` or `type`.

    Raises:
        ModelLoadError: an unknown type, or a value that is missing or out of range. It names the key.
    """
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, Mapping) or any(isinstance(value, Mapping) for value in given.values()):
        raise ModelLoadError(f"rope parameters {given!r} are not one plain table: parameters by layer are unsupported")
    theta = _number("rope_theta", given, config, above=1, default=10_000.0)
    rope_type = str(given.get("rope_type") or given.get("type") or "default")
    if rope_type not in ROPE_TYPES:
        raise ModelLoadError(f"rope_type {rope_type!r} is not supported: supported are {', '.join(ROPE_TYPES)}")
    rotated = _number("partial_rotary_factor", given, config, above=0, default=1.0)
    if rotated != 1.0:
        raise ModelLoadError(f"partial_rotary_factor = {rotated} is not supported: only 1 is")
    return theta, RopeScaling() if rope_type == "default" else _read_scaling(rope_type, config, given)


def _read_scaling(rope_type: str, config: Mapping[str, Any], given: Mapping[str, Any]) -> RopeScaling:
    original = longest = _number("max_position_embeddings", config, above=0)
    if rope_type in ("llama3", "yarn"):
        original = _number("original_max_position_embeddings", config, given, above=0, default=longest)
    # Only yarn may leave its factor to the ratio of the two lengths.
    factor = _number("factor", given, above=0, default=longest / original if rope_type == "yarn" else None)
    if factor < 1:
        raise ModelLoadError(f"rope factor {factor} is less than 1: it cannot stretch a context")
    scaling = RopeScaling(rope_type=rope_type, factor=factor, original_length=int(original))
    if rope_type == "llama3":
        low, high = (_number(key, given, above=0) for key in ("low_freq_factor", "high_freq_factor"))
        if high <= low:
            raise ModelLoadError(f"rope high_freq_factor {high} must be more than low_freq_factor {low}")
        return replace(scaling, low_freq_factor=low, high_freq_factor=high)
    if rope_type == "yarn":
        return replace(
            scaling,
            beta_fast=_number("beta_fast", given, above=0, default=32.0),
            beta_slow=_number("beta_slow", given, above=0, default=1.0),
            truncate=bool(given.get("truncate", True)),
            attention_factor=_yarn_attention_factor(factor, given),
        )
    return scaling


def _yarn_attention_factor(factor: float, given: Mapping[str, Any]) -> float:
    """Return the factor of cosines and sines: as given, else as the paper recommends."""
    if given.get("attention_factor") is not None:
        return _number("attention_factor", given, above=0)
    if given.get("mscale") and given.get("mscale_all_dim"):
        scale, all_dimensions = (_number(key, given, above=0) for key in ("mscale", "mscale_all_dim"))
        return yarn_mscale(factor, scale) / yarn_mscale(factor, all_dimensions)
    return yarn_mscale(factor)


def yarn_mscale(factor: float, scale: float = 1.0) -> float:
    """Return 0.1 * scale * ln(factor) + 1, the square root of the scores' growth (arXiv 2309.00071)."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def stretched_length(num_positions: int, scaling: RopeScaling) -> int:
    """Return the longest context in tokens, given the configuration's number of positions.

    linear and dynamic: positions times factor; yarn: original length times factor, where that is
    more than stated; llama3: as stated, its number is that of the stretched context.
    """
    if scaling.rope_type in ("linear", "dynamic"):
        return int(num_positions * scaling.factor)
    if scaling.rope_type == "yarn":
        return max(num_positions, int(scaling.original_length * scaling.factor))
    return num_positions


def _number(key: str, *places: Mapping[str, Any], above: float, default: float | None = None) -> float:
    """Return the first value of `key` that is not None: a finite number greater than `above`."""
    value = next((place[key] for place in places if place.get(key) is not None), default)
    if value is None:
        raise ModelLoadError(f"its rope parameters lack {key!r}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < math.inf:
        raise ModelLoadError(f"{key} = {value!r} is not a number above {above}")
    return float(value)
