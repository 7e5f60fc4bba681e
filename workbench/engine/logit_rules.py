"""Rules that change logits before a token is chosen: what may come, and what is made less likely.

Each rule touches a few tokens of a few rows, so a rule is a list of (row, token) pairs applied at
once with index arithmetic; rows without rules cost nothing. Order as in vLLM: allowed ids, ids
held back by min_tokens, bad words, bias, penalties.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from workbench.engine.row_rules import RowRules

Rules = Sequence[tuple[int, RowRules]]
"""(row, its rules), for the rows that have any."""


def apply_rules(logits: torch.Tensor, rows: Rules) -> None:
    """Apply rules to float32 [S, vocab] logits, **in place**."""
    _allow(logits, rows)
    _set(logits, ((row, token) for row, rule in rows for token in rule.held_back_ids))
    _cut_bad_words(logits, rows)
    _add_bias(logits, rows)
    _penalize(logits, rows)


def _allow(logits: torch.Tensor, rows: Rules) -> None:
    """Cut everything but the allowed ids."""
    for row, rule in rows:
        if rule.params.allowed_token_ids is not None:
            allowed = torch.tensor(rule.params.allowed_token_ids)
            kept = logits[row, allowed]
            logits[row] = -torch.inf
            logits[row, allowed] = kept


def _cut_bad_words(logits: torch.Tensor, rows: Rules) -> None:
    """Cut tokens that would complete a bad word; where nothing would be left, the words are let through."""
    for row, rule in rows:
        tokens = completing_tokens(rule.context[rule.num_prompt_tokens :], rule.bad_word_ids)
        if tokens:
            before = logits[row].clone()
            _set(logits, ((row, token) for token in tokens))
            if torch.isneginf(logits[row].max()):
                logits[row] = before


def completing_tokens(output: Sequence[int], bad_word_ids: Iterable[Sequence[int]]) -> list[int]:
    """Return the tokens that, after `output`, would complete one of the sequences."""
    return [
        word[-1]
        for word in bad_word_ids
        if len(word) == 1 or (len(output) >= len(word) - 1 and list(output[-len(word) + 1 :]) == list(word[:-1]))
    ]


def _add_bias(logits: torch.Tensor, rows: Rules) -> None:
    pairs = [(row, token, bias) for row, rule in rows for token, bias in rule.params.logit_bias.items()]
    if pairs:
        index_row, index_token, biases = zip(*pairs, strict=True)
        logits[list(index_row), list(index_token)] += torch.tensor(biases, dtype=logits.dtype)


def _penalize(logits: torch.Tensor, rows: Rules) -> None:
    """Repetition over prompt and output, then frequency and presence over the output."""
    parts = [_occurrences(row, rule) for row, rule in rows if rule.params.has_penalties]
    if not parts:
        return
    row_index, tokens, counts, repetition, frequency, presence = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    index = (torch.from_numpy(row_index), torch.from_numpy(tokens))
    values = logits[index]
    factor = torch.from_numpy(repetition)
    values = torch.where(values > 0, values / factor, values * factor)
    values -= torch.from_numpy(frequency * counts + presence * (counts > 0))
    logits[index] = values


def _occurrences(row: int, rule: RowRules) -> tuple[np.ndarray, ...]:
    """Every token of the row's context once: row, token, count in the output, and the penalties."""
    context = np.asarray(rule.context, dtype=np.int64)
    tokens = np.unique(context)
    output_tokens, output_counts = np.unique(context[rule.num_prompt_tokens :], return_counts=True)
    counts = np.zeros(len(tokens), dtype=np.float32)
    counts[np.searchsorted(tokens, output_tokens)] = output_counts
    params = rule.params
    penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    columns = [np.full(len(tokens), value, dtype=np.float32) for value in penalties]
    return (np.full(len(tokens), row, dtype=np.int64), tokens, counts, *columns)


def _set(logits: torch.Tensor, pairs: Iterable[tuple[int, int]]) -> None:
    """Cut (row, token) pairs."""
    listed = list(pairs)
    if listed:
        index_row, index_token = zip(*listed, strict=True)
        logits[list(index_row), list(index_token)] = -torch.inf
