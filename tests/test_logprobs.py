"""Log-probabilities of the real model equal transformers' within 1e-4."""

from __future__ import annotations

import pytest

from workbench import LLM, SamplingParams
from workbench.bench.reference import ReferenceModel

pytestmark = [pytest.mark.model, pytest.mark.slow_reference, pytest.mark.timeout(300)]

TOLERANCE = 1e-4


def test_logprobs_of_prompt_and_output_equal_transformers(reference_model: ReferenceModel):
    prompts = ["The capital of France is", "def fibonacci(n):\n    ", "In 1969, 3 people flew to the moon 🚀 and"]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=5, prompt_logprobs=3)
    with LLM(num_blocks=64, max_num_batched_tokens=16) as llm:
        outputs = llm.generate(prompts, params)

    for output in outputs:
        answer = output.outputs[0]
        whole = [*output.prompt_token_ids, *answer.token_ids]
        expected = reference_model.logits(whole[:-1]).log_softmax(dim=-1)
        assert output.prompt_logprobs is not None and answer.logprobs is not None
        positions = [*output.prompt_logprobs[1:], *answer.logprobs]
        assert len(positions) == len(expected)
        for row, position, token_id in zip(expected, positions, whole[1:], strict=True):
            assert position is not None
            assert token_id in position
            best = row.topk(len(position) - 1).values
            for found, one in position.items():
                assert one.logprob == pytest.approx(row[found].item(), abs=TOLERANCE)
            ranked = sorted((one.logprob for one in position.values()), reverse=True)
            assert ranked[: len(best)] == pytest.approx(best.tolist(), abs=TOLERANCE)
