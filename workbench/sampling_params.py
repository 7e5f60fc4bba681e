"""How one request wants its tokens chosen. Field names and meanings are vLLM's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from workbench.errors import InvalidSamplingParamsError

MAX_SEED = (1 << 63) - 1
MAX_STOP_STRINGS = 64
MAX_N = 64
MAX_BEAM_WIDTH = 16
MAX_LOGPROBS = 20
"""Most alternatives reported per position, as in vLLM."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen, msgpack-ready sampling parameters.

    `temperature=0` is greedy whatever top_p, top_k, min_p and seed say. The same seed gives the
    same tokens alone or in any batch, since random numbers are a function of (seed, output position).

    Order of effects on the logits: allowed ids, bad words, min_tokens, bias, penalties; then
    temperature, min_p, top_k, top_p.

    Raises:
        InvalidSamplingParamsError: a value is out of range; the message gives value, limit, remedy.
    """

    n: int = 1
    """Answers to one prompt, which share its blocks. With a seed, answer i is drawn with seed + i."""
    use_beam_search: bool = False
    """Follow the `beam_width` most likely continuations at once; return the `n` best, as transformers does."""
    beam_width: int = 4
    length_penalty: float = 1.0
    """Beam search divides a log-probability by length to this power: above 0, longer answers gain."""
    early_stopping: bool | str = False
    """Beam search ends when beam_width answers are complete (True), when none of those under way can become better at
    its present length (False), or at any length ("never")."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 and -1 keep all."""
    min_p: float = 0.0
    """Cut tokens less likely than min_p times the most likely one (arXiv 2407.01082)."""
    seed: int | None = None
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output (arXiv 1909.05858)."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a logit once for each time the token stands in the output."""
    logit_bias: Mapping[int, float] = {}
    """Added to the logits of these token ids."""
    allowed_token_ids: Sequence[int] | None = None
    """Only these can be sampled. Kept as a tuple."""
    bad_words: str | Sequence[str] = ()
    """Texts that are not generated: the token that would complete one is cut. Kept as a tuple."""
    stop: str | Sequence[str] = ()
    """Text or texts that end the answer; the answer does not contain them. Kept as a tuple."""
    stop_token_ids: int | Sequence[int] = ()
    """Token id or ids that end the answer. Kept as a tuple."""
    ignore_eos: bool = False
    min_tokens: int = 0
    """Neither end-of-text, nor stop ids, nor stop texts end the answer before this many tokens."""
    max_tokens: int | None = 16
    """Most tokens to generate; None means as many as the context allows."""
    logprobs: int | None = None
    """Report the log-probability of each chosen token and of this many most likely ones."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt, from the second one on."""
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        force = msgspec.structs.force_setattr
        force(self, "stop", _as_tuple("stop", self.stop, str))
        force(self, "bad_words", _as_tuple("bad_words", self.bad_words, str))
        force(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids, int))
        if self.allowed_token_ids is not None:
            force(self, "allowed_token_ids", _as_tuple("allowed_token_ids", self.allowed_token_ids, int))
        self._check_numbers()
        self._check_lists()
        self._check_beams()
        for name in ("ignore_eos", "skip_special_tokens", "use_beam_search"):
            if not isinstance(getattr(self, name), bool):
                _reject(name, getattr(self, name), "True or False")

    def _check_numbers(self) -> None:
        _number(self, "temperature", 0, 100, "0 is greedy")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            _reject("top_p", self.top_p, "a number above 0 and at most 1; 1 keeps all tokens")
        _number(self, "min_p", 0, 1, "0 keeps all tokens")
        if not _is_number(self.repetition_penalty) or not 0 < self.repetition_penalty <= 100:
            _reject(
                "repetition_penalty", self.repetition_penalty, "a number above 0 and at most 100; 1 changes nothing"
            )
        _number(self, "presence_penalty", -2, 2, "0 changes nothing")
        _number(self, "frequency_penalty", -2, 2, "0 changes nothing")
        _whole(self, "n", 1, MAX_N)
        _whole(self, "top_k", -1, None, "0 and -1 keep all tokens")
        _whole(self, "min_tokens", 0, None)
        _optional(self, "seed", 0, MAX_SEED)
        _optional(self, "max_tokens", 1, None, "None for as many as fit")
        _optional(self, "logprobs", 0, MAX_LOGPROBS)
        _optional(self, "prompt_logprobs", 0, MAX_LOGPROBS)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            _reject("min_tokens", self.min_tokens, f"at most max_tokens, which is {self.max_tokens}")

    def _check_lists(self) -> None:
        for name, texts in (("stop", self.stop_texts), ("bad_words", self.bad_texts)):
            if any(not text for text in texts):
                _reject(name, texts, "texts of at least one character")
            if len(texts) > MAX_STOP_STRINGS:
                _reject(name, f"{len(texts)} texts", f"at most {MAX_STOP_STRINGS} texts")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            _reject("allowed_token_ids", self.allowed_token_ids, "at least one token id, or None to allow all")
        _check_bias(self.logit_bias)

    def _check_beams(self) -> None:
        _whole(self, "beam_width", 1, MAX_BEAM_WIDTH)
        _number(self, "length_penalty", -10, 10, "1 is the mean log-probability of a token, 0 the sum")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            _reject("early_stopping", self.early_stopping, "True, False or 'never'")
        if not self.use_beam_search:
            return
        if self.n > self.beam_width:
            _reject("n", self.n, f"at most beam_width, which is {self.beam_width}")
        neutral = SamplingParams()
        for name in _NOT_WITH_BEAMS:
            if getattr(self, name) != getattr(neutral, name):
                _reject(name, getattr(self, name), f"{getattr(neutral, name)!r}: beam search has no {name}")

    @property
    def num_sequences(self) -> int:
        """Sequences that are computed side by side: answers, or beams."""
        return self.beam_width if self.use_beam_search else self.n

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The stop texts, as a tuple whatever form they were given in."""
        return cast("tuple[str, ...]", self.stop)

    @property
    def bad_texts(self) -> tuple[str, ...]:
        """The bad words, as a tuple whatever form they were given in."""
        return cast("tuple[str, ...]", self.bad_words)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The stop token ids, as a tuple whatever form they were given in."""
        return cast("tuple[int, ...]", self.stop_token_ids)

    @property
    def has_penalties(self) -> bool:
        """Whether the choice depends on how often tokens stand in the context."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @property
    def needs_context(self) -> bool:
        """Whether choosing a token needs the tokens before it, not only the logits."""
        return self.has_penalties or bool(self.bad_words)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise InvalidSamplingParamsError for a token id outside 0 … vocab_size - 1."""
        for name, token_ids in (
            ("stop_token_ids", self.stop_ids),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("logit_bias", self.logit_bias),
        ):
            for token_id in token_ids:
                if not 0 <= token_id < vocab_size:
                    _reject(name, token_id, f"token ids from 0 to {vocab_size - 1}, the model's vocabulary")


_NOT_WITH_BEAMS = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "stop",
    "logprobs",
    "prompt_logprobs",
)
"""What changes or reports single tokens' probabilities. Temperature, top_p, top_k, min_p and seed mean nothing to beams
and are ignored, as at temperature 0."""


def _reject(name: str, value: object, remedy: str) -> None:
    raise InvalidSamplingParamsError(f"{name}={value!r} is not valid: give {remedy}")


def _check_bias(bias: Any) -> None:
    if not isinstance(bias, Mapping):
        _reject("logit_bias", bias, "a mapping from token ids to numbers from -100 to 100")
    for token_id, value in bias.items():
        if not _is_int(token_id) or not _is_number(value) or not -100 <= value <= 100:
            _reject("logit_bias", {token_id: value}, "token ids with numbers from -100 to 100")


def _number(params: SamplingParams, name: str, low: float, high: float, note: str) -> None:
    value = getattr(params, name)
    if not _is_number(value) or not low <= value <= high:
        _reject(name, value, f"a number from {low} to {high}; {note}")


def _whole(params: SamplingParams, name: str, low: int, high: int | None, note: str = "") -> None:
    value = getattr(params, name)
    if not _is_int(value) or value < low or (high is not None and value > high):
        limit = f"of at least {low}" if high is None else f"from {low} to {high}"
        _reject(name, value, f"a whole number {limit}" + (f"; {note}" if note else ""))


def _optional(params: SamplingParams, name: str, low: int, high: int | None, note: str = "None for none") -> None:
    if getattr(params, name) is not None:
        _whole(params, name, low, high, note)


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
