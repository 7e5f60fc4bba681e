"""From logits to the tokens of a step: draws, verified drafts, and their log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from workbench.engine.logit_rules import apply_rules
from workbench.engine.logprobs import compute_logprobs
from workbench.engine.messages import TokenLogprobs
from workbench.engine.random_numbers import Purpose, uniform
from workbench.engine.sampler import SamplingBatch, probabilities, sample
from workbench.engine.scheduler_output import Draw, ScheduledRequest
from workbench.speculation.proposer import Draft
from workbench.speculation.rejection_sampler import Verdict, accept_drawn, accept_matching


@dataclass(frozen=True)
class Choice:
    """Tokens by the name of the answer that gets them, and log-probabilities for those who ask."""

    token_ids: dict[str, tuple[int, ...]]
    logprobs: dict[str, tuple[TokenLogprobs, ...]]


@dataclass(frozen=True)
class _Row:
    """One token to choose: at a draw, from a row of logits."""

    logits_row: int
    item: ScheduledRequest
    draw: Draw
    offset: int
    """Drafted tokens of the request before this position."""


@dataclass(frozen=True)
class _Place:
    """An answer and its rows."""

    item: ScheduledRequest
    draw: Draw
    rows: slice

    @property
    def num_rows(self) -> int:
        return self.rows.stop - self.rows.start


def choose_tokens(
    sampled: Sequence[ScheduledRequest], logits: torch.Tensor, drafts: Mapping[str, Draft], vocab_size: int
) -> Choice:
    """Draw the plan's tokens, several from one row where answers part, and verify its drafts.

    Args:
        sampled: requests that sample; each has `num_sampled_rows` rows of logits, in order.
        logits: float32 [S, vocab].
        drafts: by request, what its drafted tokens were drawn from, if from anything.
        vocab_size: of the model.
    """
    rows = _rows_of(sampled)
    if not rows:
        return Choice({}, {})
    if [row.logits_row for row in rows] != list(range(len(logits))):
        logits = logits[[row.logits_row for row in rows]]
    raw_logits = logits
    constrained = [(at, row.item.rules[row.offset]) for at, row in enumerate(rows) if row.item.rules]
    if constrained:
        logits = logits.clone()
        apply_rules(logits, constrained)
    batch = SamplingBatch.build(
        params=[row.item.sampling_params for row in rows],
        seeds=[row.draw.seed for row in rows],
        positions=[row.item.output_position + row.offset for row in rows],
        vocab_size=vocab_size,
    )
    chosen = sample(logits, batch).tolist()
    places = _places_of(sampled)
    wanted = _DrawnFrom(places, drafts, logits, batch)
    token_ids: dict[str, tuple[int, ...]] = {}
    reported: list[tuple[str, list[int]]] = []
    for place in places:
        verdict = wanted.verify(place, chosen) or accept_matching(place.item.draft_token_ids, chosen[place.rows])
        token_ids[place.draw.request_id] = verdict.token_ids
        if place.item.sampling_params.logprobs is not None:
            first = place.rows.start
            reported.append((place.draw.request_id, list(range(first, first + len(verdict.token_ids)))))
    return Choice(token_ids, _logprobs(reported, raw_logits, token_ids, rows))


def _rows_of(sampled: Sequence[ScheduledRequest]) -> list[_Row]:
    """A draw for each answer from the one row, or one at each drafted position; the two never meet."""
    rows: list[_Row] = []
    first = 0
    for item in sampled:
        for draw in item.draws:
            rows += [_Row(first + offset, item, draw, offset) for offset in range(item.num_sampled_rows)]
        first += item.num_sampled_rows
    return rows


def _places_of(sampled: Sequence[ScheduledRequest]) -> list[_Place]:
    """Where each answer's rows are, in the order of `_rows_of`."""
    places: list[_Place] = []
    at = 0
    for item in sampled:
        for draw in item.draws:
            places.append(_Place(item, draw, slice(at, at + len(item.draft_token_ids) + 1)))
            at = places[-1].rows.stop
    return places


class _DrawnFrom:
    """What the model draws from, beside drafts that were drawn too: computed for all of a step at once."""

    def __init__(
        self, places: Sequence[_Place], drafts: Mapping[str, Draft], logits: torch.Tensor, batch: SamplingBatch
    ) -> None:
        found = [(place, drafts.get(place.item.request_id)) for place in places]
        self._drafts = {
            place.draw.request_id: (draft, draft.probabilities)
            for place, draft in found
            if draft is not None and draft.probabilities is not None and _is_drawn(place.item)
        }
        drawn = [place for place in places if place.draw.request_id in self._drafts]
        if not drawn:
            return
        rows = np.concatenate([np.arange(place.rows.start, place.rows.stop) for place in drawn])
        positions = np.concatenate([place.item.output_position + np.arange(place.num_rows) for place in drawn])
        seeds = np.repeat([np.uint64(place.draw.seed) for place in drawn], [place.num_rows for place in drawn])
        self._first = dict(
            zip(self._drafts, np.cumsum([0, *(place.num_rows for place in drawn[:-1])]).tolist(), strict=True)
        )
        self._probabilities = probabilities(logits[torch.from_numpy(rows)], batch.rows(rows))
        self._accept = uniform(seeds, positions, Purpose.ACCEPT).tolist()
        self._recover = uniform(seeds, positions, Purpose.RECOVER).tolist()

    def verify(self, place: _Place, chosen: Sequence[int]) -> Verdict | None:
        """Accept or recover an answer's draft; None if it was not drawn from a distribution."""
        if place.draw.request_id not in self._drafts:
            return None
        draft, draft_probabilities = self._drafts[place.draw.request_id]
        drafted = place.item.draft_token_ids
        assert draft.token_ids[: len(drafted)] == drafted, "verified another draft than was made"
        first = self._first[place.draw.request_id]
        here = slice(first, first + place.num_rows)
        return accept_drawn(
            drafted,
            draft_probabilities,
            self._probabilities[here],
            self._accept[here],
            self._recover[here],
            chosen[place.rows.stop - 1],
        )


def _is_drawn(item: ScheduledRequest) -> bool:
    return bool(item.draft_token_ids) and item.sampling_params.temperature > 0


def _logprobs(
    reported: Sequence[tuple[str, Sequence[int]]],
    logits: torch.Tensor,
    token_ids: Mapping[str, tuple[int, ...]],
    rows: Sequence[_Row],
) -> dict[str, tuple[TokenLogprobs, ...]]:
    """Of each reported answer, one for each of its tokens."""
    index = [at for _, places in reported for at in places]
    counts = [rows[at].item.sampling_params.logprobs or 0 for at in index]
    found = iter(compute_logprobs(logits[index], [t for name, _ in reported for t in token_ids[name]], counts))
    return {name: tuple(next(found) for _ in places) for name, places in reported}
