"""How one request wants tokens drafted ahead of the model (speculative decoding, arXiv 2211.17192)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from workbench.errors import InvalidSpeculationParamsError

METHODS: Final = ("none", "ngram", "draft_model", "eagle", "hybrid")
"""`ngram` looks the last tokens up in the context; `draft_model` asks a smaller model; `eagle` a head on the model's
hidden states; `hybrid` is ngram where it finds something, else the head."""
MAX_SPECULATIVE_TOKENS: Final = 16
MAX_LOOKUP: Final = 16


class SpeculationParams(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen, msgpack-ready. What is drafted never changes what a greedy request answers, only how fast.

    Raises:
        InvalidSpeculationParamsError: a value is out of range; the message gives value, limit, remedy.
    """

    method: str = "none"
    """One of `METHODS`."""
    num_speculative_tokens: int = 4
    """Most tokens drafted for one step (K)."""
    speculative_adaptive: bool = False
    """Draft fewer, or none, where measurement says that it does not pay."""
    draft_confidence: float = 0.15
    """A draft by a model ends before a token whose chance to be reached and to stand is less than this, as far as the
    drafting model knows: the product of its highest probabilities so far. 0: every draft is as long as asked for."""
    prompt_lookup_min: int = 2
    """Fewest last tokens that `ngram` looks up."""
    prompt_lookup_max: int = 4
    """Most last tokens that `ngram` looks up; longer matches come first."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            _reject("method", self.method, f"one of {', '.join(METHODS)}")
        _whole(self, "num_speculative_tokens", MAX_SPECULATIVE_TOKENS)
        _whole(self, "prompt_lookup_min", MAX_LOOKUP)
        _whole(self, "prompt_lookup_max", MAX_LOOKUP)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            _reject(
                "prompt_lookup_min",
                self.prompt_lookup_min,
                f"at most prompt_lookup_max, which is {self.prompt_lookup_max}",
            )
        is_adaptive: Any = self.speculative_adaptive
        if not isinstance(is_adaptive, bool):
            _reject("speculative_adaptive", is_adaptive, "True or False")

        confidence: Any = self.draft_confidence
        is_number = isinstance(confidence, int | float) and not isinstance(confidence, bool)
        if not is_number or not 0 <= confidence < 1:  # NaN fails here, too
            _reject("draft_confidence", confidence, "a number from 0 to below 1")

    @property
    def is_on(self) -> bool:
        """Whether anything is drafted."""
        return self.method != "none"


def _whole(params: SpeculationParams, name: str, most: int) -> None:
    value: Any = getattr(params, name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        _reject(name, value, f"a whole number from 1 to {most}")


def _reject(name: str, value: object, remedy: str) -> None:
    raise InvalidSpeculationParamsError(f"{name}={value!r} is not valid: give {remedy}")


NO_SPECULATION: Final = SpeculationParams()
