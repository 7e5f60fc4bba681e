"""Where a draft by a model ends: at its most tokens, or where the model no longer expects to be right."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from kernels.ops import AttentionMetadata, load_backend
from workbench.speculation.paged_proposer import EXPECTED_CONFIDENCE, PagedProposer, spare_blocks
from workbench.speculation.paged_store import PagedStore
from workbench.speculation.proposer import DraftContext, DraftRequest

VOCAB_SIZE, BLOCK_SIZE = 5, 8


class SureAsTold:
    """Drafts token 3, each time with the next of the probabilities that it was given."""

    offsets = (0,)
    vocabulary = None

    def __init__(self, confidences: Sequence[float]) -> None:
        self._confidences = confidences
        self.num_passes = 0

    def note(self, step: DraftContext, store: PagedStore) -> None:
        """Nothing is needed."""

    def forward(
        self, token_ids: torch.Tensor, features: torch.Tensor | None, metadata: AttentionMetadata, store: PagedStore
    ) -> torch.Tensor:
        return torch.zeros((len(token_ids), 1))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        sure = self._confidences[self.num_passes]
        self.num_passes += 1
        row = torch.full((VOCAB_SIZE,), (1 - sure) / (VOCAB_SIZE - 1)).log()
        row[3] = torch.tensor(sure).log()
        return row.expand(len(hidden), -1).clone()


def drafted(
    confidences: Sequence[float], most: int, least: float, temperature: float = 0.0
) -> tuple[tuple[int, ...], int]:
    """Return the draft of one request, and the passes that it took."""
    model = SureAsTold(confidences)
    store = PagedStore(
        load_backend("reference"),
        [(1, BLOCK_SIZE, 1)],
        num_blocks=4,
        num_spare_blocks=spare_blocks(BLOCK_SIZE),
        num_swap_blocks=0,
        block_size=BLOCK_SIZE,
    )
    uniforms = (0.7,) * most  # token 3 is drawn wherever it has two fifths
    request = DraftRequest("a", (1, 2, 4), most, (1, 3), ((0,),), temperature, uniforms, least)
    (draft,) = PagedProposer(model, store, VOCAB_SIZE).propose([request])
    if temperature and draft.token_ids:
        assert draft.probabilities is not None
        assert len(draft.probabilities) == len(draft.token_ids)
    return draft.token_ids, model.num_passes


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("least", "num_tokens", "num_passes"),
    [
        (0.0, 4, 4),
        (0.09, 3, 4),  # 0.8 x 0.5 x 0.5 = 0.2, and half of that is enough to go on; but the next one makes it 0.08
        (0.3, 2, 2),  # 0.8 x 0.5 = 0.4, and half of that is too little to go on
        (0.5, 1, 1),
        (0.85, 0, 1),
    ],
)
def test_draft_ends_where_its_tokens_are_no_longer_expected_to_stand(temperature, least, num_tokens, num_passes):
    token_ids, passes = drafted((0.8, 0.5, 0.5, 0.4), 4, least, temperature)
    assert len(token_ids) == num_tokens
    assert passes == num_passes


def test_token_that_is_drawn_may_stand_where_none_is_likely():
    """At temperature 0 only the likeliest one counts."""
    flat = (0.21, 0.21)
    assert drafted(flat, 2, 0.25) == ((), 1)
    assert len(drafted(flat, 2, 0.25, temperature=1.0)[0]) == 1
    assert drafted(flat, 2, 0.25, temperature=0.5) == ((), 1)


def test_draft_is_never_longer_than_wanted():
    assert drafted((0.9,) * 4, 2, 0.1) == ((3, 3), 2)


def test_token_that_is_found_out_to_be_doubtful_is_left_out():
    """What it would cost to verify it is saved, though it cost a pass."""
    assert EXPECTED_CONFIDENCE * 0.8 > 0.3 > 0.8 * 0.3
    assert drafted((0.8, 0.3, 0.9), 3, 0.3) == ((3,), 2)
