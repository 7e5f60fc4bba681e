"""Bitwise: a context has the same logits whatever shares the step, however it is cut, on any threads."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from kernels.ops import load_backend
from workbench.config import DEFAULT_MODEL, EngineConfig
from workbench.engine.core import EngineCore
from workbench.engine.messages import Submit, answer_id
from workbench.models.loader import LoadedModel, load_model
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import TransferKind

pytestmark = pytest.mark.model

NUM_TOKENS = 3


OPS = load_backend("cpu")


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(DEFAULT_MODEL, OPS, lambda _progress: None)


class Events(NamedTuple):
    """How often something happened that must not show."""

    num_preemptions: int
    num_swapped_blocks: int
    num_copied_blocks: int
    num_cached_tokens: int


class Recording:
    """A runner that keeps the logits from which each answer was drawn."""

    def __init__(self, runner):
        self._execute, self._compute_logits = runner.execute, runner._model.compute_logits
        self._latest = torch.empty(0)
        self.rows = defaultdict(list)
        runner.execute = self.execute
        runner._model = SimpleNamespace(
            ops=runner._model.ops, forward=runner._model.forward, compute_logits=self.compute_logits
        )

    def compute_logits(self, hidden):
        self._latest = self._compute_logits(hidden)
        return self._latest

    def execute(self, plan, drafter):
        output = self._execute(plan, drafter)
        sampled = [item for item in plan.scheduled if item.draws]
        if sampled:
            rows = iter(self._latest.clone())
            for item in sampled:
                own = [next(rows) for _ in range(item.num_sampled_rows)]
                for draw in item.draws:
                    self.rows[draw.request_id] += own[: len(output.token_ids[draw.request_id])]
        return output


def logits_of(loaded, prompts, num_threads=2, n=1, **settings):
    """Run prompts together; return for each answer the logits of its sampled positions [NUM_TOKENS, vocab]."""
    OPS.set_num_threads(num_threads)
    core = EngineCore(EngineConfig(**{"num_blocks": 256, "check_integrity": True, **settings}), loaded)
    recording = Recording(core.runner)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, n=n)
    for index, prompt in enumerate(prompts):
        core.submit(Submit(f"r{index}", tuple(prompt), params, 0.0), seed=0)
    preemptions = swapped = copied = cached = 0
    with torch.inference_mode():
        while core.scheduler.has_work:
            outcome = core.step()
            assert outcome.error is None, outcome.error
            preemptions += sum(e.decision == "preempted" for e in outcome.record.explanations)
            swapped += sum(t.kind is TransferKind.SWAP_IN for t in outcome.record.transfers)
            copied += sum(t.kind is TransferKind.COPY for t in outcome.record.transfers)
            cached += outcome.record.num_cached_tokens
    names = [answer_id(f"r{number}", index) for number in range(len(prompts)) for index in range(n)]
    return [torch.stack(recording.rows[name]) for name in names], Events(preemptions, swapped, copied, cached)


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
        {"kv_layout": "contiguous"},
    ],
)
def test_logits_are_bitwise_the_same_alone_and_in_any_batch(loaded, prompts, alone, settings):
    together, _ = logits_of(loaded, prompts, **settings)

    for index, expected in enumerate(alone):
        assert torch.equal(together[index], expected), f"prompt {index} of {len(prompts[index])} tokens"


@pytest.mark.parametrize("preemption_mode", ["recompute", "swap"])
def test_logits_are_bitwise_the_same_after_a_preemption(loaded, prompts, alone, preemption_mode):
    settings = {"num_blocks": 13, "swap_space": 0.05, "enable_prefix_caching": False}
    together, events = logits_of(loaded, [prompts[0], prompts[3]], preemption_mode=preemption_mode, **settings)

    assert events.num_preemptions > 0
    assert (events.num_swapped_blocks > 0) == (preemption_mode == "swap")
    assert torch.equal(together[0], alone[0])
    assert torch.equal(together[1], alone[3])


def test_logits_of_answers_that_share_a_prompt_are_bitwise_those_of_one_alone(loaded, prompts, alone):
    together, events = logits_of(loaded, prompts, n=3)

    # Each prompt that ends within a block leaves it to one answer and a copy to the two others.
    assert events.num_copied_blocks == 2 * sum(len(prompt) % 16 != 0 for prompt in prompts)
    for index, expected in enumerate(alone):
        for answer in together[3 * index : 3 * index + 3]:
            assert torch.equal(answer, expected), f"prompt {index}"


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 16}])
def test_logits_after_a_cache_hit_are_bitwise_those_without(loaded, prompts, alone, settings):
    """Each prompt twice in one engine: the second time most of it is found, not computed."""
    together, events = logits_of(loaded, [*prompts, *prompts], max_num_seqs=5, **settings)

    # The whole blocks before the last token: 8, 2, 3 and 1 of them.
    assert events.num_cached_tokens >= 16 * (8 + 2 + 3 + 1)
    for index, expected in enumerate([*alone, *alone]):
        assert torch.equal(together[index], expected), f"prompt {index}"
