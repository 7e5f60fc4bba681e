"""Models loaded from directories against transformers: the same tokens, the same logits, in float32.

Each case is one tiny random model. Answers run past the original length of every rotary scaling and past
every sliding window, so both what was read from config.json and the formulas are held against the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.ops import AttentionMetadata, kv_cache_shapes, load_backend
from tests.models.tiny_directory import write_tiny_directory
from workbench.llm import LLM
from workbench.models.loader import LoadedModel, load_model
from workbench.sampling_params import SamplingParams

NUM_NEW_TOKENS = 16
LONG = list(range(100, 145))
"""45 tokens: beyond the original length of 32 at once."""
SHORT = [[260, 35, 259, 262, 106, 266], list(range(40, 60))]
"""These begin inside the original length; the second one's answer ends beyond it."""
LONGER = [3 + 7 * i % 250 for i in range(110)]
"""Three windows of 36, which begin inside blocks."""
LONGEST = [3 + 11 * i % 250 for i in range(600)]


@dataclass(frozen=True)
class Case:
    """A model, and prompts for it."""

    name: str
    family: str = "Llama"
    config: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    max_shard_size: str = "1GB"
    prompts: tuple[list[int], ...] = (*SHORT, LONG)


def rope(rope_type: str, positions: int = 128, **values: Any) -> dict[str, Any]:
    parameters = {"rope_type": rope_type, "rope_theta": 500.0, "factor": 4.0, **values}
    return {"max_position_embeddings": positions, "rope_parameters": parameters}


LLAMA3: dict[str, Any] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
CASES = (
    Case("llama_untied_in_shards", max_shard_size="50KB"),
    Case("llama_tied_without_grouped_heads", config={"tie_word_embeddings": True, "num_key_value_heads": 4}),
    Case("llama_with_biases_and_wide_heads", config={"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    Case("mistral_bf16", "Mistral", {"sliding_window": None}, torch.bfloat16),
    Case("mistral_window", "Mistral", {"sliding_window": 36}, prompts=(*SHORT, LONG, LONGER)),
    Case("mistral_window_below_a_block", "Mistral", {"sliding_window": 5}, prompts=(*SHORT, LONG, LONGER)),
    Case(
        "mistral_window_of_more_than_a_chunk_of_the_kernel",
        "Mistral",
        {"sliding_window": 300, "max_position_embeddings": 1024},
        prompts=(LONG, LONGEST),
    ),
    Case(
        "qwen2_window_in_its_second_layer",
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
        prompts=(*SHORT, LONG, LONGER),
    ),
    Case(
        "qwen2_window_in_every_other_layer",
        "Qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 36,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        prompts=(*SHORT, LONG, LONGER),
    ),
    Case("qwen2_fp16_tied", "Qwen2", {"tie_word_embeddings": True}, torch.float16, "50KB"),
    Case("qwen2_untied", "Qwen2", {"rms_norm_eps": 1e-5}),
    Case("llama_linear", config=rope("linear", 32)),
    # A prompt beyond the original length is the one thing that differs by design: see models/rope.py.
    Case("llama_dynamic", config=rope("dynamic", 32), prompts=tuple(SHORT)),
    Case("llama_llama3", config=rope("llama3", **LLAMA3)),
    Case("llama_yarn", config=rope("yarn", original_max_position_embeddings=32)),
    Case(
        "qwen2_yarn_with_all_options",
        "Qwen2",
        rope(
            "yarn",
            original_max_position_embeddings=32,
            beta_fast=8.0,
            beta_slow=2.0,
            truncate=False,
            attention_factor=1.3,
        ),
    ),
    Case(
        "mistral_yarn_with_mscale", "Mistral", rope("yarn", mscale=1.5, mscale_all_dim=0.5) | {"sliding_window": None}
    ),
)


@dataclass(frozen=True)
class Reference:
    """What transformers says."""

    case: Case
    path: Path
    answers: list[list[int]]
    logits: list[torch.Tensor]
    """For each prompt float32 [new tokens, vocab], from decoding step by step."""


@pytest.fixture(scope="module", params=CASES, ids=[case.name for case in CASES])
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, compiled_kernels: None
) -> Reference:
    case: Case = request.param
    path = tmp_path_factory.mktemp("directory") / case.name
    model = write_tiny_directory(path, case.family, case.dtype, case.max_shard_size, **case.config)
    model.generation_config.eos_token_id = None
    answers, logits = [], []
    for prompt in case.prompts:
        output = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=NUM_NEW_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        answers.append(output.sequences[0, len(prompt) :].tolist())
        logits.append(torch.cat(output.logits))
    return Reference(case, path, answers, logits)


def test_greedy_answers_equal_those_of_transformers(reference):
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW_TOKENS, ignore_eos=True)
    # Small steps: prompts are prefilled in chunks, next to others that decode.
    with LLM(str(reference.path), num_blocks=64, max_num_batched_tokens=16, check_integrity=True) as llm:
        outputs = llm.generate(list(reference.case.prompts), params)

    assert [list(output.outputs[0].token_ids) for output in outputs] == reference.answers


def test_logits_equal_those_of_transformers(reference):
    loaded = load_model(str(reference.path), load_backend("cpu"), lambda _: None)
    for prompt, answer, expected in zip(reference.case.prompts, reference.answers, reference.logits, strict=True):
        ours = logits_after_each(loaded, prompt + answer[:-1])[len(prompt) - 1 :]

        assert ours.shape == expected.shape == (NUM_NEW_TOKENS, 280)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)


def logits_after_each(loaded: LoadedModel, token_ids: list[int]) -> torch.Tensor:
    """Return logits float32 [T, vocab] of one context in one step."""
    config, length = loaded.config, len(token_ids)
    blocks = torch.arange(-(-length // 16), dtype=torch.int32)
    positions = torch.arange(length)
    metadata = AttentionMetadata(
        query_start=torch.tensor([0, length], dtype=torch.int32),
        seq_lens=torch.tensor([length], dtype=torch.int32),
        block_tables=blocks[None],
        slot_mapping=positions,
        positions=positions,
    )
    keys, values = kv_cache_shapes(len(blocks), 16, config.num_kv_heads, config.head_size)
    caches = [(torch.zeros(keys), torch.zeros(values)) for _ in range(config.num_layers)]
    with torch.inference_mode():
        hidden = loaded.model.forward(torch.tensor(token_ids), [metadata] * len(config.layer_groups), caches)
        return loaded.model.compute_logits(hidden)
