"""How many tokens to draft: as many as pay, from measured acceptance and measured times; often none.

The next step yields one token for each request that decodes, and for each drafted token the probability
that it and all before it are accepted. It costs a pass over so many rows, and drafting. Drafted tokens are
taken in the order of their probability, over all requests, and the count with the most expected tokens per
second wins (the trade-off of arXiv 2211.17192, section 3.4, for a batch). At few rows a pass costs the same
with some more; at many rows each costs as much as another request's token, and nothing is drafted.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Final

MEMORY: Final = 0.97
"""Weight that an observation keeps at the next one."""
PRIOR_WEIGHT: Final = 2.0
"""Observations that the first guess of a request's acceptance counts for."""
FORGET_IDLE: Final = 0.995
"""Weight that evidence keeps at each step without a draft: who drafts nothing is tried again after a while."""
LEAST_PACE: Final = 0.88
"""Of the tokens per second that it would have without anybody's drafts, what each request keeps: nobody waits for long
while others draft."""
FIRST_GUESS: Final = 0.7
"""Acceptance before anything was measured."""


class Acceptance:
    """The probability that one drafted token is accepted, lately; of one request, or of one method."""

    def __init__(self) -> None:
        self._accepted = 0.0
        self._tried = 0.0

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count a verified draft: the accepted tokens, and the one at which it stopped."""
        tried = min(num_draft_tokens, num_accepted_tokens + 1)
        for _ in range(tried):
            self._forget(MEMORY)
        self._accepted += num_accepted_tokens
        self._tried += tried

    def idle(self) -> None:
        """A step without a draft."""
        self._forget(FORGET_IDLE)

    def _forget(self, share: float) -> None:
        self._accepted *= share
        self._tried *= share

    def estimate(self, prior: float) -> float:
        """Return the probability, drawn towards `prior` while little was seen."""
        return (self._accepted + PRIOR_WEIGHT * prior) / (self._tried + PRIOR_WEIGHT)


class StepCost:
    """Seconds of a step by its number of rows: measured once at a few counts, corrected by every step since."""

    def __init__(self, measured_s: Mapping[int, float]) -> None:
        """`measured_s`: rows → seconds, at least one."""
        self._rows = sorted(measured_s)
        self._seconds = [measured_s[rows] for rows in self._rows]
        self._factor = 1.0

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long: the machine is busier, or contexts are longer, than when measured."""
        ratio = seconds / self._measured(rows)
        self._factor = MEMORY * self._factor + (1 - MEMORY) * min(ratio, 4 * self._factor)

    def seconds(self, rows: int) -> float:
        """Return what a step of so many rows takes."""
        return self._factor * self._measured(rows)

    def _measured(self, rows: int) -> float:
        """Between two measured counts in proportion; beyond the last, each row costs its share of that."""
        place = bisect.bisect_left(self._rows, rows)
        if place == 0:
            return self._seconds[0]
        if place == len(self._rows):
            return self._seconds[-1] * rows / self._rows[-1]
        low, high = self._rows[place - 1], self._rows[place]
        share = (rows - low) / (high - low)
        return self._seconds[place - 1] * (1 - share) + self._seconds[place] * share


class DraftCost:
    """Seconds of drafting by one method, lately: for each token of the longest draft of a round."""

    def __init__(self) -> None:
        self._per_token_s: float | None = None

    def observe(self, most_tokens: int, seconds: float) -> None:
        """A round that drafted at most `most_tokens` for anybody took so long."""
        per_token = seconds / max(1, most_tokens)
        before = per_token if self._per_token_s is None else self._per_token_s
        self._per_token_s = 0.9 * before + 0.1 * per_token

    def seconds(self, most_tokens: int) -> float:
        """Return what a round of so many tokens takes; nothing before the first, so that it is tried."""
        return (self._per_token_s or 0.0) * most_tokens


def choose_counts(
    acceptances: Sequence[float],
    limits: Sequence[int],
    num_rows: int,
    step_s: Callable[[int], float],
    draft_s: Callable[[int], float],
    least_pace: float = LEAST_PACE,
) -> list[int]:
    """Return how many tokens to draft for each request so that the most tokens per second are expected.

    But no request may fall below `least_pace` of its own: those that draft nothing get a token a step all the same.

    Args:
        acceptances: of each request that could draft, the probability for one token, below 1.
        limits: most tokens to draft for each.
        num_rows: rows of the next step without drafts.
        step_s: rows → seconds of a step.
        draft_s: most tokens for one request → seconds of drafting.
        least_pace: expected tokens per second of each request, over those without drafts, at least.
    """
    offers = sorted(
        (-(acceptance ** (position + 1)), position, place)
        for place, acceptance in enumerate(acceptances)
        for position in range(limits[place])
    )
    passes_s = [step_s(num_rows + taken) for taken in range(len(offers) + 1)]
    best, best_rate = [0] * len(acceptances), num_rows / passes_s[0]
    for most in range(1, max(limits, default=0) + 1):  # so much drafting is paid for; rows decide the rest
        taken, num_waiting, expected, drafting_s = 0, num_rows, float(num_rows), draft_s(most)
        counts, paces = [0] * len(acceptances), [1.0] * len(acceptances)
        for probability, position, place in offers:
            if position >= most:
                continue
            num_waiting -= not counts[place]
            counts[place] += 1
            paces[place] -= probability
            taken += 1
            expected -= probability
            seconds = passes_s[taken] + drafting_s
            slowest = 1.0 if num_waiting else min(paces)
            if expected / seconds > best_rate and slowest / seconds >= least_pace / passes_s[0]:
                best, best_rate = list(counts), expected / seconds
    return best
