"""Bitwise: a context has the same logits whatever shares the step, however it is cut, on any threads."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from kernels.ops import load_backend
from workbench.config import DEFAULT_MODEL, EngineConfig
from workbench.engine.core import EngineCore
from workbench.engine.messages import Submit
from workbench.models.loader import LoadedModel, load_model
from workbench.sampling_params import SamplingParams

pytestmark = pytest.mark.model

NUM_TOKENS = 3


OPS = load_backend("cpu")


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(DEFAULT_MODEL, OPS, lambda _progress: None)


class Recording:
    """A model that keeps the logits of every sampled row."""

    def __init__(self, model):
        self._model = model
        self.rows = []

    def forward(self, *arguments):
        return self._model.forward(*arguments)

    @property
    def ops(self):
        return self._model.ops

    def compute_logits(self, hidden):
        logits = self._model.compute_logits(hidden)
        self.rows.append(logits.clone())
        return logits


def logits_of(loaded, prompts, num_threads=2, **settings):
    """Run prompts together; return for each the logits of its sampled positions [NUM_TOKENS, vocab]."""
    OPS.set_num_threads(num_threads)
    core = EngineCore(EngineConfig(**{"num_blocks": 256, "check_integrity": True, **settings}), loaded)
    recording = Recording(loaded.model)
    core.runner._model = recording
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        core.submit(Submit(f"r{index}", tuple(prompt), params, 0.0), seed=0)
    rows = defaultdict(list)
    preemptions = cached = 0
    with torch.inference_mode():
        while core.scheduler.has_work:
            outcome = core.step()
            assert outcome.error is None, outcome.error
            sampled = [event.request_id for event in outcome.events if hasattr(event, "token_ids")]
            if sampled:
                for request_id, row in zip(sampled, recording.rows.pop(), strict=True):
                    rows[request_id].append(row)
            preemptions += sum(e.decision == "preempted" for e in outcome.record.explanations)
            cached += outcome.record.num_cached_tokens
    return [torch.stack(rows[f"r{index}"]) for index in range(len(prompts))], preemptions, cached


@pytest.fixture(scope="module")
def prompts(loaded):
    text = "A block table maps the logical blocks of a request onto physical ones, so memory is used as it is needed. "
    ids = loaded.tokenizer.encode(text * 12)
    return [ids[:133], ids[:1], ids[5:38], ids[40:104], ids[7:24]]


@pytest.fixture(scope="module")
def alone(loaded, prompts):
    return [logits_of(loaded, [prompt])[0][0] for prompt in prompts]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 16, "num_threads": 1},
        {"max_num_batched_tokens": 100, "max_num_seqs": 3},
        {"num_threads": 1},
    ],
)
def test_logits_are_bitwise_the_same_alone_and_in_any_batch(loaded, prompts, alone, settings):
    together, _, _ = logits_of(loaded, prompts, **settings)

    for index, expected in enumerate(alone):
        assert torch.equal(together[index], expected), f"prompt {index} of {len(prompts[index])} tokens"


def test_logits_are_bitwise_the_same_after_a_preemption(loaded, prompts, alone):
    together, preemptions, _ = logits_of(loaded, [prompts[0], prompts[3]], num_blocks=13)

    assert preemptions > 0
    assert torch.equal(together[0], alone[0])
    assert torch.equal(together[1], alone[3])


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 16}])
def test_logits_after_a_cache_hit_are_bitwise_those_without(loaded, prompts, alone, settings):
    """Each prompt twice in one engine: the second time most of it is found, not computed."""
    together, _, cached = logits_of(loaded, [*prompts, *prompts], max_num_seqs=5, **settings)

    # The whole blocks before the last token: 8, 2, 3 and 1 of them.
    assert cached >= 16 * (8 + 2 + 3 + 1)
    for index, expected in enumerate([*alone, *alone]):
        assert torch.equal(together[index], expected), f"prompt {index}"
