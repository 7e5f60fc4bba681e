"""Beam search: follow the few most likely continuations of a prompt at once (Lowerre, *The Harpy system*, 1976).

This module only decides. It knows no blocks, no model and no request: per step it is shown how likely the next tokens
of each running beam are, and says which beams go on from which. Its answers and scores are those of transformers'
`generate(num_beams=…)`, in the same float32 arithmetic, so that near ties fall on the same side.

Every step goes like this. All continuations of all running beams are ranked by the sum of their log-probabilities:

* One that ends (by an end token, or all of them at the length limit) becomes a hypothesis, but only from the first
  `width` ranks: what ranks lower has no claim to be an answer. The best `width` hypotheses are kept.
* The first `width` that do not end go on running, whatever their rank.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

Candidate = tuple[int, float]
"""A token id and its log-probability."""


@dataclass(frozen=True)
class Continuation:
    """A running beam and the token that is appended to it."""

    parent: int
    """Index of the beam among those that were running."""
    token_id: int
    score: float
    """Sum of the log-probabilities of all output tokens."""


@dataclass(frozen=True)
class Hypothesis:
    """An answer of the search."""

    token_ids: tuple[int, ...]
    """Its output, the end token included."""
    score: float
    """Sum of log-probabilities / number of tokens ** length penalty."""
    is_stopped: bool
    """Whether an end token ended it, and not the length limit."""


class BeamSearch:
    """The search of one request, from its first token to its answers.

    Args:
        width: beams that run side by side, and hypotheses that are kept.
        max_new_tokens: length limit of an output, in tokens.
        length_penalty: above 0, longer answers gain; 0 compares sums, 1 means per token.
        early_stopping: end when `width` hypotheses are complete (True); when moreover the best running beam could not
            replace one of them at its present length (False), or at any length ("never").
        end_token_ids: tokens that end an output; may be empty.
    """

    def __init__(
        self,
        width: int,
        max_new_tokens: int,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        end_token_ids: Collection[int] = (),
    ) -> None:
        self.width = width
        self.max_new_tokens = max_new_tokens
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.end_token_ids = frozenset(end_token_ids)
        self.is_done = False
        self._scores = [0.0]  # of the running beams; at first there is one, the prompt
        self._hypotheses: list[Hypothesis] = []  # best first, at most `width`

    @property
    def num_candidates(self) -> int:
        """How many of the most likely tokens of each running beam `advance` needs.

        One beam can supply all `width` beams of the next step, and each end token can take one rank before them.
        """
        return self.width + len(self.end_token_ids)

    def advance(
        self, outputs: Sequence[Sequence[int]], candidates: Sequence[Sequence[Candidate]]
    ) -> list[Continuation]:
        """Append one token to the beams; return the beams that run on, best first, at most `width`.

        An empty list means that the search is over; `is_done` says the same.

        Args:
            outputs: output tokens of each running beam so far, in the order in which `advance` last returned them. The
                first call has one beam without tokens.
            candidates: of each running beam, its `num_candidates` most likely tokens in any order. Fewer, and tokens of
                log-probability minus infinity, are fine; more change nothing.

        Raises:
            ValueError: the search is over, or the number of beams is not that of the last call's continuations.
        """
        if self.is_done:
            raise ValueError("this beam search is over: it cannot advance")
        ranked = self._rank(candidates)
        num_tokens = len(outputs[0]) + 1
        is_last = num_tokens >= self.max_new_tokens
        ended = [c for c in ranked[: self.width] if is_last or c.token_id in self.end_token_ids]
        running = [] if is_last else [c for c in ranked if c.token_id not in self.end_token_ids][: self.width]

        self._add_hypotheses(ended, outputs)
        if running or is_last:  # otherwise no beam has a possible next token, and they stay as they are, for `best`
            self._scores = [c.score for c in running]
        self.is_done = not running or not self._may_improve(running[0].score, num_tokens)
        return [] if self.is_done else running

    def best(self, count: int, outputs: Sequence[Sequence[int]] = ()) -> list[Hypothesis]:
        """Return the `count` best hypotheses, best first.

        There are fewer only if the search is cut off (say, by an abort), or if its beams had too few possible tokens.
        Then `outputs`, those of the beams that still run, fill up, behind the hypotheses: a part of an answer is worth
        more to its reader than none. (transformers returns padding of score -1e9 in their place.)
        """
        unfinished = [
            Hypothesis(tuple(output), self._penalized(score, len(output)), is_stopped=False)
            for output, score in zip(outputs, self._scores, strict=False)
            if output
        ]
        return (self._hypotheses + _best_first(unfinished))[:count]

    def _rank(self, candidates: Sequence[Sequence[Candidate]]) -> list[Continuation]:
        """Return all possible continuations, best first; equal scores go by beam, then by token id."""
        ranked = []
        for parent, (score, tokens) in enumerate(zip(self._scores, candidates, strict=True)):
            for token_id, log_probability in tokens:
                total = float(np.float32(score) + np.float32(log_probability))
                if math.isfinite(total):
                    ranked.append(Continuation(parent, token_id, total))
        return sorted(ranked, key=lambda c: (-c.score, c.parent, c.token_id))

    def _add_hypotheses(self, ended: Sequence[Continuation], outputs: Sequence[Sequence[int]]) -> None:
        """Keep the best `width` of the hypotheses so far and the new ones; of equal ones, the older stays."""
        for c in ended:
            token_ids = (*outputs[c.parent], c.token_id)
            score = self._penalized(c.score, len(token_ids))
            self._hypotheses.append(Hypothesis(token_ids, score, c.token_id in self.end_token_ids))
        self._hypotheses = _best_first(self._hypotheses)[: self.width]

    def _may_improve(self, best_running_score: float, num_tokens: int) -> bool:
        """Whether the search should go on, by the rule of `early_stopping`.

        best_running_score: of the best running beam, which has `num_tokens` tokens.
        """
        if len(self._hypotheses) < self.width:
            return True
        if self.early_stopping is True:
            return False
        # A beam's sum only falls. Where length helps, the best that it could still reach is this sum at full length.
        is_patient = self.early_stopping == "never" and self.length_penalty > 0
        length = self.max_new_tokens if is_patient else num_tokens
        return self._penalized(best_running_score, length) > self._hypotheses[-1].score

    def _penalized(self, score: float, num_tokens: int) -> float:
        # Extreme penalties leave float32's range: scores then become 0 or minus infinity, as in transformers.
        with np.errstate(all="ignore"):
            return float(np.float32(score) / np.float32(float(num_tokens) ** self.length_penalty))


def _best_first(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
