"""Speculative sampling draws from the model's own distribution: two tokens in a row, every way of sampling.

Tens of thousands of drafts, made from a noisy copy of a tiny model, are verified with its real logits; what comes
out is compared with the exact distribution of two tokens. A broken verification is told apart by the same test.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kernels.ops import AttentionMetadata, kv_cache_shapes, load_backend
from tests.engine.plain_sampling import p_value, plain_probabilities
from tests.models.tiny_gguf import write_tiny_gguf
from workbench.engine import choice
from workbench.engine.choice import choose_tokens
from workbench.engine.random_numbers import Purpose, uniform
from workbench.engine.request import Request
from workbench.engine.share import share_of
from workbench.models.loader import LoadedModel, load_model
from workbench.sampling_params import SamplingParams
from workbench.speculation import rejection_sampler
from workbench.speculation.drawing import Drawn, draw
from workbench.speculation.proposer import Draft
from workbench.speculation.rejection_sampler import Verdict

pytestmark = pytest.mark.timeout(300)

NUM_DRAWS = 20_000
FEWER_DRAWS = 6_000
"""Enough for what is broken."""
FALSE_ALARM = 1e-6
ROUND = 1000
"""Requests verified together."""
VOCAB_SIZE = 269
EOS = 2
PROMPT = (80, 100, 120, 100)
FIRST = 90
"""The output token that is there before anything is drafted."""

SETTINGS: dict[str, dict[str, Any]] = {
    "temperature 1": {},
    "temperature 0.7": {"temperature": 0.7},
    "top_k": {"top_k": 6},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1},
    "penalties and bias": {
        "repetition_penalty": 1.5,
        "frequency_penalty": 1.0,
        "presence_penalty": 0.5,
        "logit_bias": {100: 6.0, 90: 5.0, 42: 4.0, 43: -3.0},
    },
    "allowed ids": {"allowed_token_ids": list(range(60, 90))},
    "min_tokens": {"min_tokens": 2, "stop_token_ids": [111, 199, 249]},
}


class Tables:
    """A model's logits after the context, and after the context and each token."""

    def __init__(self, loaded: LoadedModel) -> None:
        context = (*PROMPT, FIRST)
        rows = [logits_after(loaded, [context]), logits_after(loaded, [(*context, t) for t in range(VOCAB_SIZE)])]
        self.logits = torch.cat(rows)

    def rows(self, outputs: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits after each output behind `FIRST`; of the third token on nothing is looked at, so any will do."""
        return self.logits[[1 + output[0] if len(output) == 1 else 0 for output in outputs]]


def logits_after(loaded: LoadedModel, contexts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Compute contexts of one length, at most a block; a float32 row for each."""
    count, length, block_size = len(contexts), len(contexts[0]), 16
    shapes = kv_cache_shapes(count, block_size, loaded.config.num_kv_heads, loaded.config.head_size)
    caches = [(torch.zeros(shapes[0]), torch.zeros(shapes[1])) for _ in range(loaded.config.num_layers)]
    positions = torch.arange(length).repeat(count)
    metadata = AttentionMetadata(
        query_start=torch.arange(0, count * length + 1, length, dtype=torch.int32),
        seq_lens=torch.full((count,), length, dtype=torch.int32),
        block_tables=torch.arange(count, dtype=torch.int32).unsqueeze(1),
        slot_mapping=torch.arange(count).repeat_interleave(length) * block_size + positions,
        positions=positions,
    )
    hidden = loaded.model.forward(torch.tensor(contexts).reshape(-1), [metadata], caches)
    return loaded.model.compute_logits(hidden[length - 1 :: length].contiguous())


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """A model that is surer of itself than the tiny one, and a copy of it with noise on every weight."""
    folder = tmp_path_factory.mktemp("sharp")
    tensors = write_tiny_gguf(folder / "target.gguf")
    sharp = {"output_norm.weight": tensors["output_norm.weight"] * 3}
    tensors = write_tiny_gguf(folder / "target.gguf", extra_tensors=sharp)
    rng = np.random.default_rng(1)
    noisy = {
        name: (values + 0.15 * values.std() * rng.standard_normal(values.shape)).astype(np.float32)
        for name, values in tensors.items()
    }
    write_tiny_gguf(folder / "draft.gguf", extra_tensors=noisy)
    return folder / "target.gguf", folder / "draft.gguf"


@pytest.fixture(scope="module")
def tables(paths):
    """Of the target, and of what drafts."""
    ops = load_backend("reference")
    with torch.inference_mode():
        return tuple(Tables(load_model(str(path), ops, lambda _progress: None)) for path in paths)


# ---------------------------------------------------------------------------------- draft and verify


def drawn_drafts(requests: Sequence[Request], count: int, tables: Tables) -> list[Draft]:
    """Draw `count` tokens for each request, as a drafting model does."""
    return [draft_of(made) for made in drawn_tokens(requests, count, tables)]


def confident_drafts(requests: Sequence[Request], count: int, tables: Tables) -> list[Draft]:
    """Of such tokens, those before the first whose distribution is too flat: about half."""
    return [
        draft_of(list(itertools.takewhile(lambda one: one.confidence >= 0.4, made)))
        for made in drawn_tokens(requests, count, tables)
    ]


def likely_drafts(requests: Sequence[Request], count: int, tables: Tables) -> list[Draft]:
    """Of such tokens, those before the first that was unlikely itself: what is left is not distributed as drawn."""
    return [
        draft_of(list(itertools.takewhile(lambda one: distribution_of(one)[one.token_id] >= 0.02, made)))
        for made in drawn_tokens(requests, count, tables)
    ]


def distribution_of(one: Drawn) -> torch.Tensor:
    assert one.probabilities is not None
    return one.probabilities


def draft_of(made: Sequence[Drawn]) -> Draft:
    if not made:
        return Draft()
    return Draft(tuple(one.token_id for one in made), torch.stack([distribution_of(one) for one in made]))


def drawn_tokens(requests: Sequence[Request], count: int, tables: Tables) -> list[list[Any]]:
    found: list[list[Any]] = [[] for _ in requests]
    for offset in range(count):
        outputs = [
            [*r.output_token_ids[1:], *(one.token_id for one in made)] for r, made in zip(requests, found, strict=True)
        ]
        seeds = np.array([request.seed for request in requests], dtype=np.uint64)
        positions = np.array([request.num_output_tokens + offset for request in requests])
        temperatures = [request.sampling_params.temperature for request in requests]
        drawn = draw(tables.rows(outputs), None, temperatures, uniform(seeds, positions, Purpose.DRAFT).tolist())
        for made, one in zip(found, drawn, strict=True):
            made.append(one)
    return found


def sure_drafts(requests: Sequence[Request], count: int, tables: Tables) -> list[Draft]:
    """Suggest tokens without a distribution: one of the three likeliest, in turns."""
    found: list[list[int]] = [[] for _ in requests]
    for _ in range(count):
        outputs = [[*r.output_token_ids[1:], *made] for r, made in zip(requests, found, strict=True)]
        best = tables.rows(outputs).topk(3, dim=-1).indices.tolist()
        for request, made, candidates in zip(requests, found, best, strict=True):
            made.append(candidates[request.seed % 3])
    return [Draft(tuple(made)) for made in found]


Drafting = Callable[[Sequence[Request], int, Tables], list[Draft]]


def verify(requests: Sequence[Request], drafts: Sequence[Draft], tables: Tables) -> None:
    """Append what one step makes of the drafts. Every second request has room for one drafted token only."""
    items, outputs = [], []
    for request, draft in zip(requests, drafts, strict=True):
        request.draft_token_ids = draft.token_ids
        request.num_computed_tokens = request.num_tokens - 1
        items.append(share_of(request, min(len(draft.token_ids), 1 + request.seed % 2) + 1, (), [EOS]))
        known, drafted = request.output_token_ids[1:], items[-1].draft_token_ids
        outputs += [[*known, *drafted[:offset]] for offset in range(len(drafted) + 1)]
    found = {request.request_id: draft for request, draft in zip(requests, drafts, strict=True)}
    chosen = choose_tokens(items, tables.rows(outputs), found, VOCAB_SIZE)
    for request in requests:
        request.token_ids += chosen.token_ids[request.request_id]


def count_pairs(params: SamplingParams, drafting: Drafting, tables, num_draws: int):
    """Return how often each pair of tokens came behind `FIRST`, int64 [vocab, vocab]."""
    target, drafter = tables
    counts = np.zeros((VOCAB_SIZE, VOCAB_SIZE), dtype=np.int64)
    for start in range(0, num_draws, ROUND):
        requests = [Request(f"r{seed}", PROMPT, params, seed=seed) for seed in range(start, start + ROUND)]
        for request in requests:
            request.token_ids.append(FIRST)
        verify(requests, drafting(requests, 2, drafter), target)
        behind = [request for request in requests if request.num_output_tokens < 3]
        verify(behind, drafting(behind, 1, drafter), target)
        for request in requests:
            counts[tuple(request.output_token_ids[1:3])] += 1
    return counts


def exact_pairs(params: SamplingParams, target: Tables):
    """Return the distribution of the two tokens behind `FIRST`, float64 [vocab, vocab]."""
    held_back = [EOS, *params.stop_ids]
    first, *second = (
        plain_probabilities(logits, params, PROMPT, [FIRST, *more], held_back)
        for logits, more in zip(target.logits.numpy(), [[], *([t] for t in range(VOCAB_SIZE))], strict=True)
    )
    return first[:, None] * np.stack(second)


def fit(params: SamplingParams, drafting: Drafting, tables, num_draws: int = NUM_DRAWS) -> float:
    return p_value(count_pairs(params, drafting, tables, num_draws), exact_pairs(params, tables[0]))


@pytest.mark.parametrize(("drafting", "num_draws"), [(drawn_drafts, NUM_DRAWS), (sure_drafts, FEWER_DRAWS)])
@pytest.mark.parametrize("name", SETTINGS)
def test_verified_drafts_are_distributed_as_the_model_says(name, drafting, num_draws, tables):
    """Sure drafts take fewer draws: they are accepted where they are what the model draws, which is another test's."""
    assert fit(SamplingParams(**SETTINGS[name]), drafting, tables, num_draws) > FALSE_ALARM


def test_drafts_that_end_where_the_drafting_model_is_unsure_change_nothing(tables):
    assert fit(SamplingParams(), confident_drafts, tables) > FALSE_ALARM


def test_some_of_these_drafts_end_early_and_some_do_not(tables):
    request = [Request(f"r{seed}", PROMPT, SamplingParams(), seed=seed) for seed in range(200)]
    for one in request:
        one.token_ids.append(FIRST)
    assert {len(draft.token_ids) for draft in confident_drafts(request, 2, tables[1])} >= {1, 2}


def test_drafts_that_end_at_an_unlikely_token_are_told_apart(tables):
    """Whether a token is drafted must not depend on which one was drawn."""
    assert fit(SamplingParams(), likely_drafts, tables, FEWER_DRAWS) < FALSE_ALARM


# ---------------------------------------------------------------------------------- broken verification


def accept_with(acceptance: Callable[[float, float], float], recovered_weights: Callable[..., torch.Tensor]) -> Any:
    """`accept_drawn` with another probability to accept, or other weights of what takes a rejected token's place."""

    def accept(drafted, q_rows, p_rows, accept_uniforms, recover_uniforms, bonus_token_id):
        for place, token_id in enumerate(drafted):
            p, q = p_rows[place], q_rows[place].double()
            if accept_uniforms[place] >= acceptance(float(p[token_id]), float(q[token_id])):
                recovered = rejection_sampler.invert(recovered_weights(p, q).numpy(), recover_uniforms[place])
                return Verdict((*drafted[:place], recovered))
        return Verdict((*drafted, bonus_token_id))

    return accept


def ratio(p: float, q: float) -> float:
    return min(1.0, p / q)


def surplus(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p - q).clamp(min=0)


BROKEN = {
    "recovers from p": accept_with(ratio, lambda p, _q: p),
    "recovers from |p - q|": accept_with(ratio, lambda p, q: (p - q).abs()),
    "accepts always": accept_with(lambda _p, _q: 1.0, surplus),
    "accepts with probability p": accept_with(lambda p, _q: p, surplus),
    "accepts too often": accept_with(lambda p, q: 1.5 * p / q, surplus),
}


def test_right_verification_written_once_more_passes(tables, monkeypatch):
    """So that those below fail for what is broken in them, and for nothing else."""
    monkeypatch.setattr(choice, "accept_drawn", accept_with(ratio, surplus))
    assert fit(SamplingParams(), drawn_drafts, tables) > FALSE_ALARM


@pytest.mark.parametrize("name", BROKEN)
def test_broken_verification_is_told_apart(name, tables, monkeypatch):
    monkeypatch.setattr(choice, "accept_drawn", BROKEN[name])
    assert fit(SamplingParams(), drawn_drafts, tables, FEWER_DRAWS) < FALSE_ALARM


def test_sure_drafts_that_are_always_accepted_are_told_apart(tables, monkeypatch):
    monkeypatch.setattr(choice, "accept_matching", lambda drafted, chosen: Verdict((*drafted, chosen[-1])))
    assert fit(SamplingParams(), sure_drafts, tables, FEWER_DRAWS) < FALSE_ALARM


def test_random_numbers_that_serve_twice_are_told_apart(tables, monkeypatch):
    monkeypatch.setattr(choice, "uniform", lambda seeds, positions, _purpose: uniform(seeds, positions, Purpose.DRAFT))
    assert fit(SamplingParams(), drawn_drafts, tables, FEWER_DRAWS) < FALSE_ALARM


@pytest.mark.parametrize("name", ["penalties and bias", "min_tokens"])
def test_rules_of_the_first_position_at_every_position_are_told_apart(name, tables, monkeypatch):
    """TRAPS.md 16."""

    right = share_of

    def share_with_one_rule(*args):
        item = right(*args)
        return replace(item, rules=item.rules[:1] * len(item.rules))

    monkeypatch.setitem(globals(), "share_of", share_with_one_rule)
    assert fit(SamplingParams(**SETTINGS[name]), sure_drafts, tables, FEWER_DRAWS) < FALSE_ALARM
