"""Which drafted tokens stand, and what comes in the place of the first that does not.

Speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318): a token drafted
from q is accepted with probability min(1, p/q), p being the model's distribution; the first rejected one
is replaced by a token from max(p - q, 0), normalized (**recovered**); when all stand, one more is drawn
from p behind them (**bonus**). What comes out is distributed exactly as if drawn from p token by token.

Where a draft was not drawn but sure (q is 1 at one token), this comes down to drawing from p and
accepting the draft when it is what was drawn: the same probabilities, and with the random numbers of a
run without drafts the very same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True)
class Verdict:
    """What a verified draft became."""

    token_ids: tuple[int, ...]
    """The accepted tokens, and one more: recovered, or bonus when all were accepted."""

    @property
    def num_accepted(self) -> int:
        """Drafted tokens that stand."""
        return len(self.token_ids) - 1


def accept_matching(draft_token_ids: Sequence[int], chosen_token_ids: Sequence[int]) -> Verdict:
    """Accept a sure draft as far as it is what the model chose.

    Args:
        draft_token_ids: k drafted tokens.
        chosen_token_ids: what was drawn, or is most likely, at each of the k + 1 positions.
    """
    count = 0
    while count < len(draft_token_ids) and draft_token_ids[count] == chosen_token_ids[count]:
        count += 1
    return Verdict(tuple(chosen_token_ids[: count + 1]))


def accept_drawn(
    draft_token_ids: Sequence[int],
    draft_probabilities: torch.Tensor,
    target_probabilities: torch.Tensor,
    accept_uniforms: Sequence[float],
    recover_uniforms: Sequence[float],
    bonus_token_id: int,
) -> Verdict:
    """Accept or recover a draft that was drawn from a distribution.

    Args:
        draft_token_ids: k drafted tokens.
        draft_probabilities: [k, vocab], what they were drawn from; rows need not sum to 1.
        target_probabilities: float64 [k + 1, vocab], the model's, after all rules and filters; as above.
        accept_uniforms: k random numbers in [0, 1).
        recover_uniforms: k random numbers in [0, 1), independent of the others.
        bonus_token_id: drawn from the last row of the target's.
    """
    all_p, all_q = target_probabilities.numpy(), draft_probabilities.numpy()
    for place, token_id in enumerate(draft_token_ids):
        p, q = _normalized(all_p[place]), _normalized(all_q[place])
        if accept_uniforms[place] * q[token_id] >= p[token_id]:
            recovered = invert(np.maximum(p - q, 0), recover_uniforms[place])
            return Verdict((*draft_token_ids[:place], recovered))
    return Verdict((*draft_token_ids, bonus_token_id))


def invert(weights: npt.NDArray[np.float64], uniform: float) -> int:
    """Return the token at which the cumulative weight passes `uniform` of the whole; never one of weight 0.

    weights: float64 [vocab], not all 0.
    """
    cumulative = np.cumsum(weights)
    total = cumulative[-1]
    return int(np.searchsorted(cumulative, min(uniform * total, np.nextafter(total, 0.0)), side="right"))


def _normalized(weights: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    wide = weights.astype(np.float64)
    return wide / wide.sum()
