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
    token_ids: dict[str, tuple[int, ...]] = {}
    reported: list[tuple[str, list[int]]] = []
    at = 0
    for item in sampled:
        for draw in item.draws:
            here = slice(at, at + len(item.draft_token_ids) + 1)
            verdict = _verify(item, draw, chosen[here], logits[here], batch.rows(here), drafts.get(item.request_id))
            token_ids[draw.request_id] = verdict.token_ids
            if item.sampling_params.logprobs is not None:
                reported.append((draw.request_id, list(range(at, at + len(verdict.token_ids)))))
            at = here.stop
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


def _verify(
    item: ScheduledRequest,
    draw: Draw,
    chosen: Sequence[int],
    logits: torch.Tensor,
    batch: SamplingBatch,
    draft: Draft | None,
) -> Verdict:
    """Compare what was drafted with what the model says. Without drafts, the one chosen token."""
    drafted = item.draft_token_ids
    is_drawn = draft is not None and draft.probabilities is not None and item.sampling_params.temperature > 0
    if not drafted or not is_drawn:
        return accept_matching(drafted, chosen)
    assert draft is not None and draft.probabilities is not None
    assert draft.token_ids[: len(drafted)] == drafted, "verified another draft than was made"
    positions = np.arange(item.output_position, item.output_position + len(drafted))
    seeds = np.full(len(drafted), draw.seed, dtype=np.uint64)
    return accept_drawn(
        drafted,
        draft.probabilities,
        probabilities(logits, batch),
        uniform(seeds, positions, Purpose.ACCEPT).tolist(),
        uniform(seeds, positions, Purpose.RECOVER).tolist(),
        chosen[-1],
    )


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
