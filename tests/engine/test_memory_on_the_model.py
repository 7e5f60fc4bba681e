"""Sharing, copying, swapping and reserving blocks never change an answer: on the real model, token for token."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numba
import pytest
import torch

from kernels.ops import load_backend
from workbench.bench.prompts import english_text
from workbench.config import DEFAULT_MODEL, EngineConfig
from workbench.engine.core import EngineCore
from workbench.engine.messages import RequestFinished, Submit, TokenEvent, answer_id
from workbench.models.loader import LoadedModel, load_model
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import Decision, Explanation, FinishReason, StepRecord, TransferKind

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

Request = tuple[list[int], SamplingParams]


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedModel]:
    """The model on one thread: answers do not depend on it, and on a busy machine threads wait for each other."""
    before = (numba.get_num_threads(), torch.get_num_threads())
    ops = load_backend("cpu")
    ops.set_num_threads(1)
    yield load_model(DEFAULT_MODEL, ops, lambda _progress: None)
    numba.set_num_threads(before[0])
    torch.set_num_threads(before[1])


@pytest.fixture(scope="module")
def text_ids(loaded: LoadedModel) -> list[int]:
    return loaded.tokenizer.encode(english_text())[:208]


class Engine:
    """An engine stepped by hand, and what came out of it."""

    def __init__(self, loaded: LoadedModel, **settings: Any) -> None:
        values = {"num_blocks": 256, "check_integrity": True, "swap_space": 0.05, **settings}
        self.core = EngineCore(EngineConfig(**values), loaded)
        self.records: list[StepRecord] = []
        self.token_ids: dict[str, list[int]] = defaultdict(list)
        self._num_submitted = 0

    def submit(self, prompt: Sequence[int], params: SamplingParams) -> list[str]:
        """Return the names of the answers that will come."""
        self._num_submitted += 1
        name = f"q{self._num_submitted}"
        self.core.submit(Submit(name, tuple(prompt), params, 0.0), seed=0)
        return [answer_id(name, index) for index in range(params.n)]

    def step(self) -> StepRecord:
        with torch.inference_mode():
            outcome = self.core.step()
        assert outcome.error is None, outcome.error
        self.records.append(outcome.record)
        for event in outcome.events:
            if isinstance(event, TokenEvent):
                self.token_ids[event.request_id] += event.token_ids
            else:
                assert isinstance(event, RequestFinished) and event.finish_reason is FinishReason.LENGTH
        return outcome.record

    def answer(self, requests: Sequence[Request]) -> list[list[list[int]]]:
        """Run requests together; return the tokens of each one's answers. All blocks are free afterwards."""
        names = [self.submit(prompt, params) for prompt, params in requests]
        while self.core.scheduler.has_work:
            self.step()
        assert self.core.scheduler.kv_cache.pool.num_active == 0
        return [[self.token_ids[name] for name in answers] for answers in names]

    @property
    def transfers(self) -> Counter[TransferKind]:
        return Counter(transfer.kind for record in self.records for transfer in record.transfers)

    @property
    def preemptions(self) -> list[Explanation]:
        told = (explanation for record in self.records for explanation in record.explanations)
        return [explanation for explanation in told if explanation.decision is Decision.PREEMPTED]


# ------------------------------------------------------------------------------------- several answers


def drawn(n: int, seed: int) -> SamplingParams:
    return SamplingParams(n=n, temperature=1.5, seed=seed, max_tokens=12, ignore_eos=True)


@pytest.mark.parametrize(
    ("num_tokens", "num_full", "num_copies"), [(200, 12, 3), (208, 13, 0)], ids=["within a block", "at a boundary"]
)
def test_four_answers_store_the_full_blocks_of_their_prompt_once(loaded, text_ids, num_tokens, num_full, num_copies):
    prompt = text_ids[:num_tokens]
    alone = Engine(loaded, enable_prefix_caching=False).answer([(prompt, drawn(1, 40 + i)) for i in range(4)])
    engine = Engine(loaded, enable_prefix_caching=False)
    names = engine.submit(prompt, drawn(4, 40))
    kv_cache = engine.core.scheduler.kv_cache

    prefill = engine.step()
    assert (prefill.num_prefill_tokens, prefill.num_active_blocks) == (num_tokens, 13)
    assert [kv_cache.pool.ref_count(block) for block in kv_cache.block_table(names[0])] == [4] * 13

    decode = engine.step()
    assert [transfer.kind for transfer in decode.transfers] == [TransferKind.COPY] * num_copies
    tables = [kv_cache.block_table(name) for name in names]
    assert len({table[:num_full] for table in tables}) == 1
    assert len({table[num_full] for table in tables}) == 4
    assert [kv_cache.pool.ref_count(block) for block in tables[0]] == [4] * num_full + [1]
    assert kv_cache.pool.num_active == decode.num_active_blocks == num_full + 4

    answers = engine.answer([])
    assert answers == []
    assert [engine.token_ids[name] for name in names] == [tokens for (tokens,) in alone]
    assert len({tuple(tokens) for (tokens,) in alone}) == 4
    assert engine.transfers == Counter({TransferKind.COPY: num_copies} if num_copies else {})


# ------------------------------------------------------------------------------------- making room


@dataclass(frozen=True)
class Workload:
    """Requests of all kinds, and their answers when each is alone in an ample pool without cache."""

    requests: list[Request] = field(repr=False)
    expected: list[list[list[int]]] = field(repr=False)

    def without_beams(self) -> Workload:
        kept = [i for i, (_, params) in enumerate(self.requests) if not params.use_beam_search]
        return Workload([self.requests[i] for i in kept], [self.expected[i] for i in kept])


@pytest.fixture(scope="module")
def workload(loaded: LoadedModel, text_ids: list[int]) -> Workload:
    greedy = functools.partial(SamplingParams, temperature=0, max_tokens=20, ignore_eos=True)
    beams = SamplingParams(use_beam_search=True, beam_width=3, n=2, max_tokens=20, ignore_eos=True)
    requests = [
        (text_ids[:100], greedy()),
        (text_ids[:60], greedy(n=2)),
        (text_ids[3:37], beams),
        (text_ids[7:24], drawn(2, 5)),
        (text_ids[1:65], greedy()),
        (text_ids[:1], greedy()),
    ]
    return Workload(requests, [Engine(loaded, enable_prefix_caching=False).answer([each])[0] for each in requests])


SMALL = {"num_blocks": 14, "max_num_batched_tokens": 64}
"""Blocks of 16 tokens. The requests together want more than 30, the largest alone 8."""


@pytest.mark.parametrize("enable_prefix_caching", [False, True], ids=["no cache", "cache"])
@pytest.mark.parametrize("preemption_mode", ["recompute", "swap"])
def test_answers_are_those_of_an_ample_pool_when_requests_make_room(
    loaded, workload, preemption_mode, enable_prefix_caching
):
    """With the cache twice in one engine: the second time begins with what is left of the first."""
    engine = Engine(loaded, **SMALL, preemption_mode=preemption_mode, enable_prefix_caching=enable_prefix_caching)
    for _ in range(1 + enable_prefix_caching):
        assert engine.answer(workload.requests) == workload.expected

    assert len(engine.preemptions) > 0
    is_swapping = preemption_mode == "swap"
    assert (engine.transfers[TransferKind.SWAP_OUT] > 0) == is_swapping
    assert (engine.transfers[TransferKind.SWAP_IN] > 0) == is_swapping
    assert engine.transfers[TransferKind.COPY] > 0
    assert (sum(record.num_cached_tokens for record in engine.records) > 0) == enable_prefix_caching
    assert engine.core.scheduler.kv_cache.swap_space.contexts == {}


def test_answers_are_the_same_in_runs_of_consecutive_blocks(loaded, workload):
    work = workload.without_beams()
    engine = Engine(loaded, **SMALL, kv_layout="contiguous", kv_placement="best_fit")

    assert engine.answer(work.requests) == work.expected
    assert not engine.transfers and not engine.preemptions
    assert any(record.internal_waste_slots for record in engine.records)


def test_answers_are_the_same_when_all_kinds_run_together_in_an_ample_pool(loaded, workload):
    """Cold, and then found in the cache."""
    engine = Engine(loaded)
    assert engine.answer(workload.requests) == workload.expected
    cold = sum(record.num_cached_tokens for record in engine.records)
    assert engine.answer(workload.requests) == workload.expected

    assert sum(record.num_cached_tokens for record in engine.records) - cold >= 16 * (6 + 3 + 2 + 1 + 3)
    assert not engine.preemptions


# ------------------------------------------------------------------------------------- auto


@pytest.mark.parametrize("block_transfer_s", [None, 10.0], ids=["as measured", "as if blocks moved slowly"])
def test_auto_takes_the_cheaper_way_and_gives_both_figures(loaded, workload, block_transfer_s):
    engine = Engine(loaded, **SMALL, preemption_mode="auto", enable_prefix_caching=False)
    preemption = engine.core.scheduler.preemption
    assert 0 < preemption.block_transfer_s < 1
    if block_transfer_s is not None:
        preemption.block_transfer_s = block_transfer_s
    assert engine.answer(workload.requests) == workload.expected

    # A victim that had computed nothing yet loses nothing, so there is nothing to compare.
    compared = [told.numbers for told in engine.preemptions if told.numbers.keys() & {"swap_us", "recompute_us"}]
    assert compared
    for numbers in compared:
        assert numbers["swap_us"] > 0 and numbers["recompute_us"] > 0
        assert ("swapped_blocks" in numbers) == (numbers["swap_us"] < numbers["recompute_us"])
    if block_transfer_s is not None:
        assert not engine.transfers[TransferKind.SWAP_OUT]
    assert preemption.token_compute_s is not None and preemption.token_compute_s > 0
