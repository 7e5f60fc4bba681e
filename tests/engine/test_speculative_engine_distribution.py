"""Sampled answers of a whole engine with a draft model are distributed exactly as the target's."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from kernels.ops import load_backend
from tests.engine.plain_sampling import p_value, plain_probabilities
from tests.engine.test_speculative_distribution import VOCAB_SIZE, logits_after, paths  # noqa: F401 - a fixture
from workbench.config import EngineConfig
from workbench.engine import choice
from workbench.engine.core import EngineCore
from workbench.engine.messages import Submit, TokenEvent
from workbench.models.loader import load_model
from workbench.sampling_params import SamplingParams
from workbench.speculation.rejection_sampler import Verdict
from workbench.speculation_params import SpeculationParams

pytestmark = pytest.mark.timeout(300)

NUM_REQUESTS = 12_000
"""More would take longer than they tell: test_speculative_distribution.py draws more for each way of sampling."""
TOGETHER = 250
PROMPT = (80, 100, 120, 100)
PARAMS = SamplingParams(temperature=0.8, top_k=30, max_tokens=4, ignore_eos=True)
"""Short answers: the first token is not drafted, the second and third are, the last is recovered or a bonus."""
WISHES = SpeculationParams(method="draft_model", num_speculative_tokens=2, draft_confidence=0.0)


@pytest.fixture(scope="module")
def models(paths):  # noqa: F811 - the fixture
    """The target, and what drafts."""
    ops = load_backend("cpu")
    return tuple(load_model(str(path), ops, lambda _progress: None) for path in paths)


def sampled(models) -> tuple[list[list[int]], int, int]:
    """Return the answers, and how many tokens were drafted and accepted."""
    config = EngineConfig(num_blocks=TOGETHER * 2, max_num_seqs=TOGETHER, enable_prefix_caching=False)
    core = EngineCore(config, models[0], 0, models[1])
    answers: dict[str, list[int]] = defaultdict(list)
    counts: Counter[str] = Counter()
    with torch.inference_mode():
        for first in range(0, NUM_REQUESTS, TOGETHER):
            for seed in range(first, first + TOGETHER):
                core.submit(Submit(f"r{seed}", PROMPT, PARAMS, 0.0, speculation=WISHES), seed)
            while core.scheduler.has_work:
                outcome = core.step()
                assert outcome.error is None, outcome.error
                for event in outcome.events:
                    if isinstance(event, TokenEvent):
                        answers[event.request_id] += event.token_ids
                        counts["drafted"] += event.num_draft_tokens
                        counts["accepted"] += event.num_accepted_tokens
    return list(answers.values()), counts["drafted"], counts["accepted"]


def exact_pairs(target, context) -> np.ndarray:
    """Return the distribution of the two tokens behind a context, float64 [vocab, vocab]."""
    rows = [logits_after(target, [context]), logits_after(target, [(*context, t) for t in range(VOCAB_SIZE)])]
    first, *second = (plain_probabilities(row, PARAMS, [], [], []) for row in torch.cat(rows).numpy())
    return first[:, None] * np.stack(second)


def count_pairs(pairs) -> np.ndarray:
    counts = np.zeros((VOCAB_SIZE, VOCAB_SIZE), dtype=np.int64)
    for pair in pairs:
        counts[tuple(pair)] += 1
    return counts


def fit(models) -> float:
    """Return how probable answers are that fit as badly or worse: by the first two tokens, and by the next two."""
    answers, num_drafted, num_accepted = sampled(models)
    assert {len(answer) for answer in answers} == {4} and len(answers) == NUM_REQUESTS
    assert num_drafted > NUM_REQUESTS and num_accepted / num_drafted > 0.2
    (likely, count), *_ = Counter(answer[0] for answer in answers).most_common(1)
    assert count > NUM_REQUESTS / 10
    with torch.inference_mode():
        first = p_value(count_pairs(a[:2] for a in answers), exact_pairs(models[0], PROMPT))
        behind = count_pairs(a[1:3] for a in answers if a[0] == likely)
        return 2 * min(first, p_value(behind, exact_pairs(models[0], (*PROMPT, likely))))


def test_answers_drafted_by_a_model_are_distributed_as_the_targets(models):
    assert fit(models) > 1e-6


def test_answers_with_every_draft_accepted_are_told_apart(models, monkeypatch):
    monkeypatch.setattr(
        choice, "accept_drawn", lambda drafted, _q, _p, _accept, _recover, bonus: Verdict((*drafted, bonus))
    )
    monkeypatch.setitem(globals(), "NUM_REQUESTS", 2_000)
    assert fit(models) < 1e-6
