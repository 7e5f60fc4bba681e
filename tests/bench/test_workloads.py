from __future__ import annotations

from typing import Any, cast

from workbench.bench.workloads import QUESTIONS, WorkItem, chat_workload
from workbench.models.tokenizer import Tokenizer


class WordTokenizer:
    """One token per word: its index in the order of first sight."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def encode_chat(self, messages: Any) -> list[int]:
        return [self.ids.setdefault(word, len(self.ids)) for word in messages[0]["content"].split()]


def workload(num_requests: int, seed: int) -> list[WorkItem]:
    return chat_workload(num_requests, seed, cast(Tokenizer, WordTokenizer()))


def test_workload_asks_for_2048_output_tokens_in_the_four_lengths_at_24_requests():
    items = workload(24, seed=0)

    assert sum(item.max_tokens for item in items) == 2048
    assert {item.max_tokens for item in items} == {32, 64, 96, 128}


def test_workload_adds_about_60_words_of_context_to_a_third():
    longest_question = max(len(question.split()) for question in QUESTIONS)

    lengths = [len(item.prompt_token_ids) for item in workload(24, seed=0)]

    assert sum(length > 60 for length in lengths) == 8
    assert all(length <= longest_question for length in lengths if length <= 60)
    assert all(61 < length <= 61 + longest_question for length in lengths if length > 60)


def test_workload_depends_on_the_seed_and_on_nothing_else():
    assert workload(24, seed=1) == workload(24, seed=1)
    assert workload(24, seed=1) != workload(24, seed=2)


def test_workload_lengths_do_not_depend_on_the_seed():
    assert [item.max_tokens for item in workload(7, seed=1)] == [128, 64, 96, 32, 64, 128, 128]
    assert [item.max_tokens for item in workload(7, seed=2)] == [128, 64, 96, 32, 64, 128, 128]
