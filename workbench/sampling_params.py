"""How one request wants its tokens chosen. Field names and meanings are vLLM's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from workbench.errors import InvalidSamplingParamsError

MAX_SEED = (1 << 63) - 1
MAX_STOP_STRINGS = 64


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen, msgpack-ready sampling parameters.

    `temperature=0` is greedy whatever top_p, top_k and seed say. The same seed gives the same
    tokens alone or in any batch, since random numbers are a function of (seed, output position).

    Raises:
        InvalidSamplingParamsError: a value is out of range; the message gives value, limit, remedy.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 and -1 keep all."""
    seed: int | None = None
    stop: str | Sequence[str] = ()
    """Text or texts that end the answer; the answer does not contain them. Kept as a tuple."""
    stop_token_ids: int | Sequence[int] = ()
    """Token id or ids that end the answer. Kept as a tuple."""
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """Most tokens to generate; None means as many as the context allows."""
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        force = msgspec.structs.force_setattr
        force(self, "stop", _as_tuple("stop", self.stop, str))
        force(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids, int))
        if not _is_number(self.temperature) or not 0 <= self.temperature <= 100:
            _reject("temperature", self.temperature, "a number from 0 to 100; 0 is greedy")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            _reject("top_p", self.top_p, "a number above 0 and at most 1; 1 keeps all tokens")
        if not _is_int(self.top_k) or self.top_k < -1:
            _reject("top_k", self.top_k, "a whole number of at least 1, or 0 to keep all tokens")
        if self.seed is not None and (not _is_int(self.seed) or not 0 <= self.seed <= MAX_SEED):
            _reject("seed", self.seed, f"a whole number from 0 to {MAX_SEED}, or None")
        if self.max_tokens is not None and (not _is_int(self.max_tokens) or self.max_tokens < 1):
            _reject("max_tokens", self.max_tokens, "a whole number of at least 1, or None for as many as fit")
        if any(not text for text in self.stop_texts):
            _reject("stop", self.stop, "texts of at least one character")
        if len(self.stop_texts) > MAX_STOP_STRINGS:
            _reject("stop", f"{len(self.stop_texts)} texts", f"at most {MAX_STOP_STRINGS} texts")
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                _reject(name, getattr(self, name), "True or False")

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The stop texts, as a tuple whatever form they were given in."""
        return cast("tuple[str, ...]", self.stop)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The stop token ids, as a tuple whatever form they were given in."""
        return cast("tuple[int, ...]", self.stop_token_ids)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise InvalidSamplingParamsError for a token id outside 0 … vocab_size - 1."""
        for token_id in self.stop_ids:
            if not 0 <= token_id < vocab_size:
                _reject("stop_token_ids", token_id, f"token ids from 0 to {vocab_size - 1}, the model's vocabulary")


def _reject(name: str, value: object, remedy: str) -> None:
    raise InvalidSamplingParamsError(f"{name}={value!r} is not valid: give {remedy}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _as_tuple(name: str, value: Any, kind: type) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, kind) and not isinstance(value, bool):
        return (value,)
    if not isinstance(value, list | tuple) or any(not isinstance(v, kind) or isinstance(v, bool) for v in value):
        _reject(name, value, f"one {kind.__name__} or a list of them")
    return tuple(value)
