"""The plan of one step: who computes which tokens in which blocks, and why.

Plain data without tensors: `batch` turns it into tensors, `Scheduler.update_from_output` closes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.engine.beam_search import Candidate
from workbench.engine.messages import TokenLogprobs
from workbench.engine.row_rules import RowRules
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import BlockTransfer, Explanation


@dataclass(frozen=True)
class Draw:
    """One token to be sampled from a request's last row."""

    request_id: str
    """Who gets it."""
    seed: int
    """With the position in the output it fixes the random numbers."""


@dataclass(frozen=True)
class ScheduledRequest:
    """The share of one request in the step."""

    request_id: str
    token_ids: tuple[int, ...]
    """Tokens to compute, in order; the drafted ones last."""
    start_position: int
    """Position of the first of them: what was computed before."""
    block_tables: tuple[tuple[int, ...], ...]
    """Of each group of layers: physical blocks that hold the context up to and including these tokens, -1 where they
    are behind the window."""
    is_prefill: bool
    """Whether these are prompt tokens (or recomputed context), not the one last sampled."""
    sampling_params: SamplingParams
    output_position: int
    """Index in the output of the first token to be sampled."""
    draws: tuple[Draw, ...] = ()
    """Tokens to sample from the last row: none while known ones are left uncomputed, several where answers part."""
    num_candidates: int = 0
    """In the place of draws, for beam search: how many of the most likely tokens are wanted."""
    rules: tuple[RowRules, ...] = ()
    """What constrains the token of each sampled row, empty when nothing does."""
    draft_token_ids: tuple[int, ...] = ()
    """The last of `token_ids`, where they are guesses to be verified: each of their rows is sampled, too."""
    prompt_targets: tuple[int, ...] = ()
    """Prompt tokens whose log-probabilities are wanted from this step's rows."""
    first_target_row: int = 0
    """Row of the share that predicts the first of them; the others follow."""

    @property
    def num_tokens(self) -> int:
        """Tokens to compute."""
        return len(self.token_ids)

    @property
    def num_known_tokens(self) -> int:
        """Tokens to compute that are not guesses."""
        return len(self.token_ids) - len(self.draft_token_ids)

    @property
    def num_sampled_rows(self) -> int:
        """Rows whose next token is wanted: the last of a known token, and those of the drafted ones."""
        return 1 + len(self.draft_token_ids) if self.samples else 0

    @property
    def samples(self) -> bool:
        """Whether the last row yields something new: with these tokens, nothing known is left uncomputed."""
        return bool(self.draws) or self.num_candidates > 0


@dataclass(frozen=True)
class SchedulerOutput:
    """What `schedule()` decided."""

    step_id: int
    scheduled: tuple[ScheduledRequest, ...]
    max_num_batched_tokens: int
    transfers: tuple[BlockTransfer, ...] = ()
    """Contents of blocks to copy, in this order, before anything is computed."""
    explanations: tuple[Explanation, ...] = ()
    num_looked_up_tokens: int = 0
    """Tokens of the contexts that were admitted, while prefix caching is on."""
    num_cached_tokens: int = 0
    """Those of them that were found in the cache."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step, at most the budget."""
        return sum(item.num_tokens for item in self.scheduled)


@dataclass(frozen=True)
class ModelRunnerOutput:
    """What `execute()` found: sampled tokens for each of the plan's draws, candidates for its beams.

    After a draft, they are the accepted tokens and one more.
    """

    token_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    logprobs: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """Of the sampled tokens, for requests that ask."""
    prompt_logprobs: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """Of the plan's prompt targets."""
    candidates: dict[str, tuple[Candidate, ...]] = field(default_factory=dict)
    """Most likely next tokens with their log-probabilities, best first, of each request that wants candidates."""
