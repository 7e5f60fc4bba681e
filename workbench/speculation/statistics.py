"""How well drafts are accepted, and what that is worth (arXiv 2211.17192, section 3)."""

from __future__ import annotations

from collections.abc import Iterable


class AcceptanceStatistics:
    """Counts over verified drafts: of one request, or of many."""

    def __init__(self) -> None:
        self.num_drafts = 0
        """Drafts that were verified."""
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.accepted_lengths: list[int] = []
        """Of each number of accepted tokens, from 0 on, how many drafts had it."""
        self._num_reached: list[int] = []
        """Of each position, drafts that had a token there and all before it accepted."""

    def add(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one verified draft of at least one token."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        _grow(self.accepted_lengths, num_accepted_tokens + 1)
        self.accepted_lengths[num_accepted_tokens] += 1
        num_reached = min(num_draft_tokens, num_accepted_tokens + 1)
        _grow(self._num_reached, num_reached)
        for position in range(num_reached):
            self._num_reached[position] += 1

    @property
    def num_wasted_tokens(self) -> int:
        """Drafted tokens that were computed and rejected."""
        return self.num_draft_tokens - self.num_accepted_tokens

    @property
    def acceptance(self) -> float | None:
        """Share of drafted tokens that were accepted; None before the first."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """Of each position, the share accepted among drafts whose earlier tokens all were: 1 - the rate of stopping."""
        accepted = [sum(self.accepted_lengths[position + 1 :]) for position in range(len(self._num_reached))]
        return [count / reached for count, reached in zip(accepted, self._num_reached, strict=True)]

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens that a verified draft yields, the recovered or bonus one included; None before the first."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> AcceptanceStatistics:
        """Count (drafted, accepted) pairs; those without a draft are left out."""
        statistics = cls()
        for num_draft_tokens, num_accepted_tokens in pairs:
            if num_draft_tokens:
                statistics.add(num_draft_tokens, num_accepted_tokens)
        return statistics


def expected_tokens(acceptance: float, num_draft_tokens: int) -> float:
    """Return the tokens that a step yields in the mean: (1 - a^(K + 1)) / (1 - a), a being one token's acceptance."""
    return sum(acceptance**position for position in range(num_draft_tokens + 1))


def predicted_speedup(acceptance: float, num_draft_tokens: int, draft_cost: float, verify_cost: float) -> float:
    """Return how many times faster than plain decoding: (1 - a^(K + 1)) / ((1 - a)(cK + v)).

    Args:
        acceptance: a, of one drafted token.
        num_draft_tokens: K.
        draft_cost: c, time of drafting one token, in plain steps.
        verify_cost: v, time of a step that verifies K tokens, in plain steps.
    """
    return expected_tokens(acceptance, num_draft_tokens) / (draft_cost * num_draft_tokens + verify_cost)


def _grow(counts: list[int], length: int) -> None:
    counts.extend([0] * (length - len(counts)))
