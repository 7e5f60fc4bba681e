"""The form of the sidebar as plain data: what its fields hold, and the parameters that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

import gradio as gr

from workbench.errors import InvalidSamplingParamsError
from workbench.presets import SAMPLING_FIELDS, SPECULATION_FIELDS
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import NO_SPECULATION, SpeculationParams

FIELDS: Final = (*SAMPLING_FIELDS, *SPECULATION_FIELDS, "priority", "logprobs")
"""Names of the form's fields, in the order of its controls. The last two are the visitor's own, and no preset gives
them: the priority of the requests, which is no sampling parameter, and whether log-probabilities are wanted."""
FORM_VERSION: Final = 5
"""Raised when the fields change, so that what a browser kept of other fields is left alone."""

NUMBERS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "beam_width",
    "length_penalty",
)
"""Fields that must hold a number; in the others, empty means none."""
MAX_ANSWERS: Final = 4
"""Most answers to one message: columns that the page has room for."""
FEWEST_BEAMS: Final = 2
MOST_BEAMS: Final = 8
EARLY_STOPPING: Final[Mapping[str, bool | str]] = {"no": False, "yes": True, "never": "never"}
"""What the form calls the values of `early_stopping`."""


class Encoder(Protocol):
    """What is needed of a tokenizer to read a logit bias that names tokens by their text."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Text to token ids."""


def as_mapping(values: Sequence[Any]) -> Mapping[str, Any]:
    """Return the form's values by name."""
    return dict(zip(FIELDS, values, strict=True))


def sampling_params(values: Sequence[Any], tokenizer: Callable[[], Encoder]) -> SamplingParams:
    """Turn the form's values, in the order of `FIELDS`, into sampling parameters.

    An empty seed or limit means none. The tokenizer is asked for only when a bias names a text.

    Raises:
        InvalidSamplingParamsError: a value is missing, not whole, or out of range.
        EngineStoppedError: a text has to be looked up and no model is loaded.
    """
    given = as_mapping(values)
    number = {name: _number(name, given[name]) for name in NUMBERS}
    uses_beams = bool(given["use_beam_search"])
    return SamplingParams(
        temperature=number["temperature"],
        top_p=number["top_p"],
        min_p=number["min_p"],
        repetition_penalty=number["repetition_penalty"],
        presence_penalty=number["presence_penalty"],
        frequency_penalty=number["frequency_penalty"],
        top_k=_whole("top_k", number["top_k"]),
        seed=_seed(given["seed"]),
        max_tokens=_whole("max_tokens", given["max_tokens"]),
        min_tokens=_whole("min_tokens", given["min_tokens"]) or 0,
        stop=_lines(given["stop"]),
        bad_words=_lines(given["bad_words"]),
        logit_bias=logit_bias(given["logit_bias"], tokenizer),
        ignore_eos=bool(given["ignore_eos"]),
        n=_whole("n", number["n"]),
        use_beam_search=uses_beams,
        logprobs=0 if given["logprobs"] is True and not uses_beams else None,
        beam_width=_whole("beam_width", number["beam_width"]),
        length_penalty=number["length_penalty"],
        early_stopping=EARLY_STOPPING.get(given["early_stopping"], given["early_stopping"]),
    )


def speculation_settings(values: Sequence[Any]) -> SpeculationParams:
    """Return how the visitor wants tokens drafted, from the form's values.

    Raises:
        InvalidSpeculationParamsError: a value is missing, not whole, or out of range.
        InvalidSamplingParamsError: a number is not whole.
    """
    given = as_mapping(values)
    return SpeculationParams(
        method=given["method"],
        num_speculative_tokens=_whole("num_speculative_tokens", given["num_speculative_tokens"]),
        speculative_adaptive=given["speculative_adaptive"] is True,
        prompt_lookup_min=_whole("prompt_lookup_min", given["prompt_lookup_min"]),
        prompt_lookup_max=_whole("prompt_lookup_max", given["prompt_lookup_max"]),
        draft_confidence=given["draft_confidence"],
    )


def speculation_params(values: Sequence[Any]) -> SpeculationParams:
    """As `speculation_settings`, for a request: with beams nothing is drafted, which the sidebar says."""
    return NO_SPECULATION if as_mapping(values)["use_beam_search"] else speculation_settings(values)


def priority_of(values: Sequence[Any]) -> int:
    """Return the priority of the visitor's requests, from the form's values; lower runs first, empty means 0.

    Raises:
        InvalidSamplingParamsError: it is not a whole number.
    """
    return _whole("priority", as_mapping(values)["priority"]) or 0


def form_values(params: SamplingParams, speculation: SpeculationParams = NO_SPECULATION) -> list[Any]:
    """Return what the form shows for a preset, in the order of `FIELDS`; what is the visitor's own stays as it is."""
    shown = {name: getattr(params, name) for name in SAMPLING_FIELDS}
    return list(
        (
            shown
            | {
                "top_k": max(params.top_k, 0),
                "seed": "" if params.seed is None else str(params.seed),
                "stop": "\n".join(params.stop_texts),
                "bad_words": "\n".join(params.bad_texts),
                "logit_bias": "\n".join(f"{token_id}: {value:g}" for token_id, value in params.logit_bias.items()),
                # a preset may hold more than the page offers: what is shown is what will be asked for
                "n": min(params.n, MAX_ANSWERS),
                "beam_width": min(max(params.beam_width, FEWEST_BEAMS), MOST_BEAMS),
                "early_stopping": next(k for k, value in EARLY_STOPPING.items() if value == params.early_stopping),
                **{name: getattr(speculation, name) for name in SPECULATION_FIELDS},
                "priority": gr.skip(),
                "logprobs": gr.skip(),
            }
        ).values()
    )


def kept_form(kept: Any) -> list[Any] | None:
    """Return the form's values and the system prompt as a browser kept them; None when they do not fit the form."""
    values = kept.get("values") if isinstance(kept, dict) and kept.get("version") == FORM_VERSION else None
    return values if isinstance(values, list) and len(values) == len(FIELDS) + 1 else None


def logit_bias(text: str | None, tokenizer: Callable[[], Encoder]) -> dict[int, float]:
    r"""Read lines of the form `token: number`.

    The token is an id, or a text that is exactly one token; a space before it belongs to it, and
    quotes mark a text that looks like an id: `"7": -5`.

    Raises:
        InvalidSamplingParamsError: a line of another form, a text of several tokens, or a token
            named twice; the message gives the line.
        EngineStoppedError: a text has to be looked up and no model is loaded.
    """
    found: dict[int, float] = {}
    for line in (text or "").splitlines():
        if not line.strip():
            continue
        token, colon, value = line.rpartition(":")
        if not colon or not token.strip():
            _refuse_bias(line, "write a token, a colon and a number")
        try:
            number = float(value)
        except ValueError:
            _refuse_bias(line, f"{value.strip()!r} is not a number: give one from -100 to 100")
        token_id = _token_id(line, token, tokenizer)
        if token_id in found:
            _refuse_bias(line, f"token {token_id} is given twice: remove one of the lines")
        found[token_id] = number
    return found


def _token_id(line: str, token: str, tokenizer: Callable[[], Encoder]) -> int:
    if token.strip().isdecimal():
        return int(token)
    quoted = token.strip()
    is_quoted = len(quoted) > 2 and quoted[0] == quoted[-1] == '"'
    text = quoted[1:-1] if is_quoted else token
    ids = tokenizer().encode(text, add_special_tokens=False)
    if len(ids) != 1:
        _refuse_bias(line, f"{text!r} is {len(ids)} tokens ({', '.join(map(str, ids))}): give a single one, or its id")
    return ids[0]


def _refuse_bias(line: str, remedy: str) -> NoReturn:
    raise InvalidSamplingParamsError(f"logit_bias: the line {line!r} is not understood: {remedy}")


def _lines(text: str | None) -> tuple[str, ...]:
    return tuple(line for line in (text or "").splitlines() if line)


def _number(name: str, value: float | None) -> float:
    if value is None:
        raise InvalidSamplingParamsError(f"{name} is empty: give a number")
    return value


def _seed(text: str | None) -> int | None:
    """Return the seed, typed as text since a browser's numbers do not hold all of its digits."""
    if not text or not text.strip():
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidSamplingParamsError(f"seed={text!r} is not valid: give a whole number, or nothing") from None


def _whole(name: str, value: float | None) -> Any:
    """Return a whole number as int (Gradio gives floats); other values go on to be refused by name."""
    if value is None:
        return None
    if isinstance(value, float) and value != int(value):
        raise InvalidSamplingParamsError(f"{name}={value} is not valid: give a whole number")
    return int(value)
