"""What is refused before it is queued. Each refusal gives the value, the limit and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from workbench.engine.messages import ServiceState, ServiceStatus
from workbench.errors import (
    EngineStoppedError,
    InvalidPromptError,
    InvalidSamplingParamsError,
    InvalidSpeculationParamsError,
    PromptTooLongError,
    QueueFullError,
)
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import SpeculationParams

if TYPE_CHECKING:
    from workbench.models.tokenizer import Tokenizer

_REMEDY = {
    ServiceState.LOADING: "wait until the model is loaded",
    ServiceState.RELOADING: "send the request again in a few seconds",
    ServiceState.FAILED: "mend the cause shown in the error and load again",
    ServiceState.STOPPED: "start a new engine",
}


def check_is_ready(status: ServiceStatus) -> None:
    """Raise EngineStoppedError unless the engine takes requests."""
    if status.state is not ServiceState.READY:
        cause = f" ({status.error})" if status.error and status.state is ServiceState.FAILED else ""
        raise EngineStoppedError(f"the engine is {status.state}{cause}: {_REMEDY[status.state]}")


def check_room_in_queue(num_open: int, num_answers: int, limit: int) -> None:
    """Raise QueueFullError when more answers would be open than may run and wait."""
    if num_open + num_answers > limit:
        raise QueueFullError(
            f"{num_open} requests are open and at most {limit} may run and wait (max_num_seqs + max_num_waiting): "
            f"try again when {'some' if num_answers == 1 else num_open + num_answers - limit} have ended"
        )


def check_num_sequences(params: SamplingParams, max_num_seqs: int) -> None:
    """Raise InvalidSamplingParamsError when the answers, or beams, of one request cannot run side by side."""
    if params.num_sequences > max_num_seqs:
        name = "beam_width" if params.use_beam_search else "n"
        raise InvalidSamplingParamsError(
            f"{name}={params.num_sequences} sequences of one request run together and at most "
            f"max_num_seqs={max_num_seqs} may: give {name} of at most {max_num_seqs}, or raise max_num_seqs"
        )


def check_can_share(params: SamplingParams, kv_layout: str) -> None:
    """Raise InvalidSamplingParamsError for a beam search where blocks cannot be shared."""
    if params.use_beam_search and kv_layout != "paged":
        raise InvalidSamplingParamsError(
            f"use_beam_search=True needs beams that share blocks, which kv_layout={kv_layout!r} cannot: "
            "start the engine with kv_layout='paged', or ask without beams"
        )


def check_speculation(wishes: SpeculationParams, params: SamplingParams, status: ServiceStatus) -> None:
    """Raise InvalidSpeculationParamsError for a method that the engine cannot offer, and with beams."""
    available = [method for method, reason in status.speculation.items() if not reason]
    if wishes.method not in available:
        raise InvalidSpeculationParamsError(
            f"method={wishes.method!r} is not available: {status.speculation.get(wishes.method, 'unknown')}; "
            f"give one of {', '.join(available)}"
        )
    if wishes.is_on and params.use_beam_search:
        raise InvalidSpeculationParamsError(
            f"method={wishes.method!r} with use_beam_search=True: beams are not drafted, give method='none'"
        )


def encode_bad_words(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return every token sequence that spells a bad word: at the start of a text, and inside one."""
    spellings = dict.fromkeys(
        tuple(tokenizer.encode(prefix + text.lstrip(), add_special_tokens=False))
        for text in texts
        for prefix in ("", " ")
    )
    return tuple(spellings)


def check_leaves_a_token(params: SamplingParams, bad_word_ids: Sequence[Sequence[int]], eos: Iterable[int]) -> None:
    """Raise InvalidSamplingParamsError when the allowed ids, minus what is forbidden, are none."""
    if params.allowed_token_ids is None:
        return
    cut = {word[0] for word in bad_word_ids if len(word) == 1}
    if params.min_tokens:
        cut.update(eos, params.stop_ids)
    if not set(params.allowed_token_ids) - cut:
        raise InvalidSamplingParamsError(
            f"allowed_token_ids={params.allowed_token_ids!r} leaves no token beside bad_words and min_tokens="
            f"{params.min_tokens}: allow at least one more"
        )


def check_request(prompt_token_ids: Sequence[int], params: SamplingParams, status: ServiceStatus) -> None:
    """Refuse what could never be served.

    Raises:
        InvalidPromptError: empty, or a token id outside the vocabulary.
        PromptTooLongError: longer than the context allows, or than the whole KV pool.
        InvalidSamplingParamsError: a token id parameter outside the vocabulary.
    """
    length = len(prompt_token_ids)
    if length == 0:
        raise InvalidPromptError("the prompt has 0 tokens: give at least 1")
    for token_id in prompt_token_ids:
        if not isinstance(token_id, int) or not 0 <= token_id < status.vocab_size:
            raise InvalidPromptError(
                f"prompt token id {token_id!r} is not in the vocabulary: ids go from 0 to {status.vocab_size - 1}"
            )
    params.check_vocabulary(status.vocab_size)
    if length >= status.max_model_len:
        raise PromptTooLongError(
            f"the prompt has {length:,} tokens and the context holds {status.max_model_len:,}, at least one of them "
            f"for the answer: shorten the prompt to {status.max_model_len - 1:,} tokens"
        )
    if length > status.most_context_tokens:
        needed = -(-length * status.num_blocks // status.most_context_tokens)
        raise PromptTooLongError(
            f"the prompt has {length:,} tokens and needs {needed:,} KV blocks of {status.block_size} tokens, the whole "
            f"pool has {status.num_blocks:,}: shorten it to {status.most_context_tokens:,} tokens or start "
            f"the engine with num_blocks >= {needed:,}"
        )
    if params.min_tokens > status.max_model_len - length:
        raise InvalidSamplingParamsError(
            f"min_tokens={params.min_tokens} does not fit beside {length:,} prompt tokens in a context of "
            f"{status.max_model_len:,}: give at most {max(0, status.max_model_len - length):,}"
        )
