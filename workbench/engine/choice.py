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
class _Place:
    """Where an answer's tokens are chosen: a row for each of its drafted tokens, and one more."""

    item: ScheduledRequest
    draw: Draw
    rows: range
    """Among all rows of the step."""
    first_logits_row: int
    """Answers that part here draw from the same logits."""

    @property
    def positions(self) -> range:
        """Of the rows, in the answer."""
        return range(self.item.output_position, self.item.output_position + len(self.rows))

    @property
    def logits_rows(self) -> range:
        return range(self.first_logits_row, self.first_logits_row + len(self.rows))


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
    places = _places_of(sampled)
    if not places:
        return Choice({}, {})
    logits_rows = [row for place in places for row in place.logits_rows]
    if logits_rows != list(range(len(logits))):
        logits = logits[logits_rows]
    raw_logits = logits
    constrained = [
        rule for place in places if place.item.rules for rule in zip(place.rows, place.item.rules, strict=True)
    ]
    if constrained:
        logits = logits.clone()
        apply_rules(logits, constrained)
    batch = SamplingBatch.build(
        params=[place.item.sampling_params for place in places for _ in place.rows],
        seeds=[place.draw.seed for place in places for _ in place.rows],
        positions=[position for place in places for position in place.positions],
        vocab_size=vocab_size,
    )
    chosen = sample(logits, batch).tolist()
    verdicts = _verify_drawn(places, drafts, logits, batch, chosen)
    token_ids: dict[str, tuple[int, ...]] = {}
    reported: list[tuple[_Place, range]] = []
    for place in places:
        name, own = place.draw.request_id, place.rows
        verdict = verdicts.get(name) or accept_matching(place.item.draft_token_ids, chosen[own.start : own.stop])
        token_ids[name] = verdict.token_ids
        if place.item.sampling_params.logprobs is not None:
            reported.append((place, own[: len(verdict.token_ids)]))
    return Choice(token_ids, _logprobs(reported, raw_logits, token_ids))


def _places_of(sampled: Sequence[ScheduledRequest]) -> list[_Place]:
    """A draw for each answer from the one row, or one at each drafted position; the two never meet."""
    places: list[_Place] = []
    first = first_logits_row = 0
    for item in sampled:
        for draw in item.draws:
            places.append(_Place(item, draw, range(first, first + item.num_sampled_rows), first_logits_row))
            first += item.num_sampled_rows
        first_logits_row += item.num_sampled_rows
    return places


def _verify_drawn(
    places: Sequence[_Place],
    drafts: Mapping[str, Draft],
    logits: torch.Tensor,
    batch: SamplingBatch,
    chosen: Sequence[int],
) -> dict[str, Verdict]:
    """Verify the drafts that were drawn from a distribution, where the model draws too; verdicts by answer."""
    drawn = [
        (place, draft, draft.probabilities)
        for place in places
        if place.item.draft_token_ids and place.item.sampling_params.temperature > 0
        if (draft := drafts.get(place.item.request_id)) is not None and draft.probabilities is not None
    ]
    if not drawn:
        return {}
    counts = [len(place.rows) for place, _, _ in drawn]
    rows = np.concatenate([place.rows for place, _, _ in drawn])
    positions = np.concatenate([place.positions for place, _, _ in drawn])
    seeds = np.repeat(np.array([place.draw.seed for place, _, _ in drawn], dtype=np.uint64), counts)
    wanted = probabilities(logits[torch.from_numpy(rows)], batch.rows(rows)).split(counts)
    accept, recover = (
        np.split(uniform(seeds, positions, purpose), np.cumsum(counts)[:-1])
        for purpose in (Purpose.ACCEPT, Purpose.RECOVER)
    )
    verdicts: dict[str, Verdict] = {}
    for number, (place, draft, draft_probabilities) in enumerate(drawn):
        drafted = place.item.draft_token_ids
        assert draft.token_ids[: len(drafted)] == drafted, "verified another draft than was made"
        verdicts[place.draw.request_id] = accept_drawn(
            drafted,
            draft_probabilities,
            wanted[number],
            accept[number].tolist(),
            recover[number].tolist(),
            chosen[place.rows[-1]],
        )
    return verdicts


def _logprobs(
    reported: Sequence[tuple[_Place, range]], logits: torch.Tensor, token_ids: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[TokenLogprobs, ...]]:
    """Of each reported answer, one for each of its tokens."""
    if not reported:
        return {}
    index = [row for _, rows in reported for row in rows]
    counts = [place.item.sampling_params.logprobs or 0 for place, rows in reported for _ in rows]
    names = [place.draw.request_id for place, _ in reported]
    found = iter(compute_logprobs(logits[index], [t for name in names for t in token_ids[name]], counts))
    return {name: tuple(next(found) for _ in rows) for name, (_, rows) in zip(names, reported, strict=True)}
