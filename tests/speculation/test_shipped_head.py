"""The head that comes with the workbench: it fits the default model and the texts in the tree, and it drafts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.bench.speculation_prompts import SpeculationPrompt, speculation_prompts
from workbench.config import DEFAULT_MODEL
from workbench.llm import LLM
from workbench.models.fingerprint import model_sha256
from workbench.outputs import RequestOutput
from workbench.sampling_params import SamplingParams
from workbench.speculation.eagle_file import head_path, read_facts
from workbench.speculation.train.examples import read_data
from workbench.speculation.train.parts import PACKED, Part
from workbench.speculation.train.train_command import fingerprint
from workbench.speculation_params import SpeculationParams

pytestmark = pytest.mark.model

HEAD = head_path(DEFAULT_MODEL)
MOST_BYTES = 12 * 2**20
NUM_TOKENS = 48
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
LEAST_TOKENS_PER_STEP = 1.25
"""Far below what `bench speculation` measures, and far above the 1.0 of a head that knows nothing."""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(num_blocks=256) as made:
        yield made


@pytest.fixture(scope="module")
def prompts(llm: LLM) -> list[SpeculationPrompt]:
    return speculation_prompts(llm.service.tokenizer, per_kind=1)


def answers(llm: LLM, prompts: list[SpeculationPrompt], method: str) -> list[RequestOutput]:
    return llm.generate(
        [list(prompt.token_ids) for prompt in prompts], PARAMS, speculation=SpeculationParams(method=method)
    )


def test_head_belongs_to_the_default_model_and_is_small(default_model_path: Path):
    facts = read_facts(HEAD)

    assert facts["model_sha256"] == model_sha256(default_model_path)
    assert HEAD.stat().st_size <= MOST_BYTES


def test_head_was_trained_on_the_texts_in_the_tree():
    facts, texts = read_facts(HEAD), read_data(PACKED[Part.TRAIN])

    assert facts["data_sha256"] == fingerprint(texts)
    assert facts["num_tokens"] == sum(one.num_generated for one in texts)


def test_no_text_of_training_holds_a_prompt_that_the_head_is_measured_on(llm: LLM):
    measured = {prompt.token_ids for prompt in speculation_prompts(llm.service.tokenizer)}
    measured |= {one.token_ids[: one.num_prompt_tokens] for one in read_data(PACKED[Part.HELD_OUT])}
    trained = {one.token_ids[: one.num_prompt_tokens] for one in read_data(PACKED[Part.TRAIN])}

    assert not measured & trained


@pytest.mark.parametrize("method", ["eagle", "hybrid"])
def test_head_drafts_what_the_model_says_and_changes_nothing(llm: LLM, prompts, method: str):
    plain, drafted = answers(llm, prompts, "none"), answers(llm, prompts, method)

    assert [each.outputs[0].token_ids for each in drafted] == [each.outputs[0].token_ids for each in plain]
    metrics = [each.metrics for each in drafted]
    num_steps = sum(NUM_TOKENS - each.num_accepted_tokens for each in metrics)
    assert NUM_TOKENS * len(metrics) / num_steps > LEAST_TOKENS_PER_STEP
