"""Drafting by a model with keys and values of its own: catch up with the context, then go on token by token.

The first pass computes, for all requests together, every position that the drafting model has not seen,
and drafts one token; each further pass computes that one position and drafts the next. Tokens that were
only drafted lie in spare blocks, or behind the known tokens in blocks of the request, and count as empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from kernels.ops import AttentionMetadata
from workbench.speculation.drawing import Drawn, draw
from workbench.speculation.paged_store import PagedStore
from workbench.speculation.proposer import Draft, DraftContext, DraftRequest
from workbench.speculation_params import MAX_SPECULATIVE_TOKENS

MOST_ROWS: Final = 64
"""Requests drafted for together; more go in several rounds."""
EXPECTED_CONFIDENCE: Final = 0.5
"""Of a token that is yet to be drafted: about the mean. Finding out costs more than verifying one too many."""
CATCH_UP_TOKENS: Final = 256
"""Most tokens that one round catches up: a long context is taken in over several steps, meanwhile without drafts."""


class DraftingModel(Protocol):
    """What turns tokens into the next one."""

    @property
    def offsets(self) -> tuple[int, ...]:
        """Position p takes the tokens p + offset, or the first token where there is none.

        (0,) for a model like others; up to 1 for a head that is told of p itself by the target.
        """

    @property
    def vocabulary(self) -> torch.Tensor | None:
        """Token ids that it can draft, int64 [V]; None for all."""

    def note(self, step: DraftContext, store: PagedStore) -> None:
        """Keep what is needed of a step that the engine computed."""

    def forward(
        self, token_ids: torch.Tensor, features: torch.Tensor | None, metadata: AttentionMetadata, store: PagedStore
    ) -> torch.Tensor:
        """Token ids int64 [T, offsets] → hidden states float32 [T, C]; writes the store at the metadata's slots.

        features: what takes the place of the target's features [T, C]: its own hidden states, where it goes on from
            its own drafts. None where the store has the target's.
        """

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states float32 [S, C] → logits float32 [S, V]."""


@dataclass
class _Row:
    """One request while tokens are drafted for it."""

    request: DraftRequest
    table: npt.NDArray[np.int32]
    """Its blocks, spare ones behind them."""
    first: int
    """Position of the first row that is missing."""
    end: int
    """Behind the last row that its tokens are known for."""
    drawn: list[Drawn] = field(default_factory=list)
    confidence: float = 1.0
    """Chance that everything drawn so far stands."""
    has_ended: bool = False
    """Whether nothing more is drafted."""

    @property
    def num_missing(self) -> int:
        return self.end - self.first

    def token(self, position: int) -> int:
        """A token of the context, or one that was drafted behind it."""
        behind = position - len(self.request.token_ids)
        return self.request.token_ids[position] if behind < 0 else self.drawn[behind].token_id

    def take(self, one: Drawn) -> None:
        """Take a drawn token into the draft, unless it is too doubtful; the draft ends where the next one would be."""
        least = self.request.least_confidence
        self.confidence *= one.confidence
        if self.confidence >= least:
            self.drawn.append(one)
        is_long = len(self.drawn) == self.request.num_tokens
        self.has_ended = is_long or self.confidence * EXPECTED_CONFIDENCE < least


class PagedProposer:
    """Drafts with a model whose keys and values lie in a `PagedStore`."""

    def __init__(self, model: DraftingModel, store: PagedStore, vocab_size: int) -> None:
        """`vocab_size` is the target's; `store` has `spare_blocks(block_size)` spare blocks."""
        self._model = model
        self._store = store
        self._vocab_size = vocab_size

    def follow(self, step: DraftContext) -> None:
        """Copy what was copied, forget what was written over."""
        for kind, block_ids in step.transfers:
            self._store.transfer(kind, block_ids)
        if step.metadata:
            self._store.empty(step.metadata[0].slot_mapping)
            self._model.note(step, self._store)

    def forget(self, request_id: str) -> None:
        """Nothing is kept by request."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for each request; none yet where its context is not caught up with."""
        return [
            draft
            for start in range(0, len(requests), MOST_ROWS)
            for draft in self._propose_round(requests[start : start + MOST_ROWS])
        ]

    def _propose_round(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        rows = [self._row(number, request) for number, request in enumerate(requests)]
        active, hidden = self._catch_up(rows)
        while active:
            self._draw(active, hidden)
            places = [place for place, row in enumerate(active) if not row.has_ended]
            active, features = [active[place] for place in places], hidden[places]
            if active:
                hidden = self._go_on(active, features)
        return [self._draft(row) for row in rows]

    def _row(self, number: int, request: DraftRequest) -> _Row:
        per_row = spare_blocks_per_row(self._store.block_size)
        spare = range(self._store.num_blocks + number * per_row, self._store.num_blocks + (number + 1) * per_row)
        table = np.array([*request.block_tables[0], *spare], dtype=np.int32)
        end = len(request.token_ids) - max(self._model.offsets)
        own = table[: -len(spare)]
        known = min(end - 1, len(own) * self._store.block_size)
        return _Row(request, table, self._store.num_filled(own, known), end)

    def _catch_up(self, rows: Sequence[_Row]) -> tuple[list[_Row], torch.Tensor]:
        """Compute what is missing, within the budget. Return the complete rows, and their last hidden states."""
        left = CATCH_UP_TOKENS
        parts: list[tuple[_Row, int]] = []
        for row in rows:
            count = min(row.num_missing, max(1, left))
            left -= count
            parts.append((row, count))
        hidden, metadata = self._forward([(row, row.first, count) for row, count in parts], None)
        self._store.fill(metadata.slot_mapping)
        ends = metadata.query_start[1:] - 1
        is_complete = [row.num_missing == count for row, count in parts]
        return [row for row, complete in zip(rows, is_complete, strict=True) if complete], hidden[
            ends[is_complete].long()
        ]

    def _go_on(self, rows: Sequence[_Row], features: torch.Tensor) -> torch.Tensor:
        """Compute the position of the token that was drafted last."""
        return self._forward([(row, row.end + len(row.drawn) - 1, 1) for row in rows], features)[0]

    def _forward(
        self, parts: Sequence[tuple[_Row, int, int]], features: torch.Tensor | None
    ) -> tuple[torch.Tensor, AttentionMetadata]:
        """Compute of each row, from a first position on, a count of positions."""
        token_ids = [
            [row.token(max(0, position + offset)) for offset in self._model.offsets]
            for row, first, count in parts
            for position in range(first, first + count)
        ]
        metadata = self._metadata(parts)
        return self._model.forward(torch.tensor(token_ids), features, metadata, self._store), metadata

    def _draw(self, rows: Sequence[_Row], hidden: torch.Tensor) -> None:
        drawn = draw(
            self._model.logits(hidden),
            self._model.vocabulary,
            [row.request.temperature for row in rows],
            [row.request.uniforms[len(row.drawn)] for row in rows],
        )
        for row, one in zip(rows, drawn, strict=True):
            row.take(one)

    def _draft(self, row: _Row) -> Draft:
        token_ids = tuple(one.token_id for one in row.drawn)
        if not token_ids or row.request.temperature == 0:
            return Draft(token_ids)
        return Draft(token_ids, _over_vocabulary(row.drawn, self._model.vocabulary, self._vocab_size))

    def _metadata(self, parts: Sequence[tuple[_Row, int, int]]) -> AttentionMetadata:
        """Rows of (request, first position, count) as tensors."""
        block_size = self._store.block_size
        starts = np.array([0, *itertools.accumulate(count for _, _, count in parts)], dtype=np.int32)
        tables = np.zeros((len(parts), max(len(row.table) for row, _, _ in parts)), dtype=np.int32)
        for number, (row, _, _) in enumerate(parts):
            tables[number, : len(row.table)] = row.table
        positions = np.concatenate([np.arange(first, first + count) for _, first, count in parts])
        blocks = tables[np.repeat(np.arange(len(parts)), np.diff(starts)), positions // block_size]
        return AttentionMetadata(
            query_start=torch.from_numpy(starts),
            seq_lens=torch.tensor([first + count for _, first, count in parts], dtype=torch.int32),
            block_tables=torch.from_numpy(tables),
            slot_mapping=torch.from_numpy(blocks * np.int64(block_size) + positions % block_size),
            positions=torch.from_numpy(positions),
        )


def spare_blocks_per_row(block_size: int) -> int:
    """Return how many blocks hold the tokens that one request may come to have drafted."""
    return -(-MAX_SPECULATIVE_TOKENS // block_size) + 1


def spare_blocks(block_size: int) -> int:
    """Return how many spare blocks a store needs."""
    return MOST_ROWS * spare_blocks_per_row(block_size)


def _over_vocabulary(drawn: Sequence[Drawn], vocabulary: torch.Tensor | None, vocab_size: int) -> torch.Tensor:
    """Probabilities [k, vocab] over the target's vocabulary."""
    own = torch.stack([one.probabilities for one in drawn if one.probabilities is not None])
    if vocabulary is None:
        return own
    return torch.zeros((len(own), vocab_size)).index_copy_(1, vocabulary, own)
