"""One request inside the engine: what was asked, how far it got.

Only the scheduler changes a request. There are no phases: a request has `num_tokens` known tokens
and `num_computed_tokens` whose keys and values lie in the cache, and every step lets it catch up.
Prefill, chunked prefill, decode and the recomputation after a preemption are all that same gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from workbench.engine.context_lookup import PrefixMatch
from workbench.engine.messages import TokenLogprobs
from workbench.sampling_params import MAX_SEED, SamplingParams
from workbench.speculation_params import NO_SPECULATION, SpeculationParams
from workbench.telemetry.records import FinishReason, RequestStatus

if TYPE_CHECKING:
    from workbench.engine.beam_group import BeamGroup


class TextStream(Protocol):
    """Turns tokens into text as they come and watches for stop texts."""

    def push(self, token_id: int, may_stop: bool = True) -> str | None:
        """Take one token; return the stop text that it completed, if any and if it may stop."""

    def flush(self) -> None:
        """Release what was held back: no more tokens will come."""

    def take(self) -> str:
        """Return the text that became certain since the last call."""


class Request:
    """Mutable state of one request; owned by the scheduler."""

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        arrival_index: int = 0,
        arrival_time_s: float = 0.0,
        seed: int = 0,
        priority: int = 0,
        text: TextStream | None = None,
        bad_word_ids: Sequence[Sequence[int]] = (),
        cache_salt: str = "",
        family: str = "",
        index: int = 0,
        speculation: SpeculationParams = NO_SPECULATION,
    ) -> None:
        """`arrival_index` orders requests; `seed` drives sampling when the parameters give none."""
        self.request_id = request_id
        self.family = family or request_id
        """Id under which it was submitted: several answers share it."""
        self.index = index
        """Which of the answers this is."""
        self.partners: list[Request] = []
        """Answers that part from this one with the first token; until then it computes for all of them."""
        self.beams: BeamGroup | None = None
        """The beam search that it is a part of."""
        self.is_parked = False
        """It stands in no queue: an answer that has not parted yet, or a beam that is out of use."""
        self.sampling_params = sampling_params
        self.arrival_index = arrival_index
        self.arrival_time_s = arrival_time_s
        self.seed = seed if sampling_params.seed is None else (sampling_params.seed + index) % (MAX_SEED + 1)
        self.priority = priority
        self.text = text
        self.bad_word_ids = tuple(tuple(word) for word in bad_word_ids)
        self.cache_salt = cache_salt
        """Requests with different salts never share cached blocks."""
        self.speculation = speculation
        self.draft_token_ids: tuple[int, ...] = ()
        """Guesses at what follows the known tokens, to be verified in the next step."""
        self.num_draft_tokens = 0
        """Drafted tokens that were verified."""
        self.num_accepted_tokens = 0
        """Those of them that the output holds."""
        self.cache: PrefixMatch | None = None
        """What was found in the cache at the last admission."""
        self.num_cached_prompt_tokens = 0
        """Prompt tokens that were found in the cache at the first admission."""
        self.prompt_logprobs: list[TokenLogprobs] = []
        """Of prompt tokens 1, 2, …, as far as they are computed; kept through preemptions."""
        self.status = RequestStatus.WAITING
        self.token_ids: list[int] = list(prompt_token_ids)
        """Prompt and output so far; a preempted request recomputes all of them."""
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.num_overtaken = 0
        """How often a later request was admitted before it because it did not fit."""
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.error: Exception | None = None
        self.beam_score: float | None = None
        """Of a finished beam: see `beam_search`."""

    @property
    def num_sequences(self) -> int:
        """Sequences that it stands for: itself, and the answers that have not parted from it yet."""
        return 1 + len(self.partners)

    @property
    def num_tokens(self) -> int:
        """Known tokens, prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of the tokens generated so far."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_missing_tokens(self) -> int:
        """Known tokens that are not computed yet."""
        return self.num_tokens - self.num_computed_tokens

    def inherit(self, other: Request) -> None:
        """Take over what is known of the prompt that this request has in common with another."""
        self.cache, self.num_cached_prompt_tokens = other.cache, other.num_cached_prompt_tokens
        self.prompt_logprobs = list(other.prompt_logprobs)

    def most_tokens(self, max_model_len: int) -> int:
        """Return the most tokens that it may come to hold, in a context of `max_model_len`."""
        limit = self.sampling_params.max_tokens
        return max_model_len if limit is None else min(self.num_prompt_tokens + limit, max_model_len)

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id}, {self.status}, prompt={self.num_prompt_tokens}, "
            f"output={self.num_output_tokens}, computed={self.num_computed_tokens})"
        )
