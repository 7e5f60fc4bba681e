"""The prefix benchmark's workload and figures."""

from __future__ import annotations

import pytest

from workbench.bench.prefix import Round, figures, workload
from workbench.models.default_model import resolve_model_path
from workbench.models.gguf_file import GGUFFile
from workbench.models.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    from workbench.config import DEFAULT_MODEL

    return Tokenizer(GGUFFile(resolve_model_path(DEFAULT_MODEL)).metadata)


def test_workload_shares_600_tokens_within_a_round_and_not_a_block_between_rounds(tokenizer: Tokenizer):
    one, other = workload(tokenizer, 16, 32, seed=2), workload(tokenizer, 16, 32, seed=3)

    assert len(one) == 16
    assert len({item.prompt_token_ids[:600] for item in one}) == 1
    assert len({item.prompt_token_ids for item in one}) == 16
    assert all(600 < len(item.prompt_token_ids) < 650 for item in one)
    assert one[0].prompt_token_ids[:16] != other[0].prompt_token_ids[:16]


def test_figures_compare_neighbouring_rounds():
    without = [Round(1000, (1.0, 3.0), 4.0), Round(1000, (2.0, 2.0), 4.0)]
    with_cache = [Round(100, (0.5, 0.5), 2.0), Round(200, (1.0, 1.0), 1.0)]

    assert figures(without, with_cache) == pytest.approx(
        {
            "prefill_tokens_without": 1000,
            "prefill_tokens_with": 150,
            "prefill_tokens_saved_fraction": 0.85,
            "ttft_p50_without_ms": 2000,
            "ttft_p50_with_ms": 750,
            "ttft_p50_ratio": 3,
            "ttft_p50_ratio_min": 2,
            "ttft_p50_ratio_max": 4,
            "duration_ratio": 3,
        }
    )
