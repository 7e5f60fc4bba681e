"""transformers on the same weights: the oracle of exactness, and the peer in throughput.

The model is read by transformers' own GGUF loader, so that nothing of ours stands between the file
and the answer. Prompts are token ids: transformers' tokenizer from a GGUF file splits digits
differently from the model's real one, and a comparison must not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

TIE_TOLERANCE: Final = 1e-3
"""Logits closer than this to the best one count as tied with it (DESIGN, Exactness)."""


@dataclass(frozen=True)
class ReferenceAnswer:
    """What transformers answers greedily, and where it was a close call."""

    token_ids: tuple[int, ...]
    ties: dict[int, tuple[int, ...]]
    """Output position → other token ids whose logit lies within TIE_TOLERANCE of the best."""


@dataclass(frozen=True)
class Beam:
    """One answer of a beam search."""

    token_ids: tuple[int, ...]
    """Up to the end token, if there is one."""
    score: float
    """Sum of log-probabilities / number of tokens."""


@dataclass(frozen=True)
class BatchAnswer:
    """The rows of one static batch, and when each of its steps ended."""

    token_ids: list[list[int]]
    step_times_s: list[float]
    """`time.perf_counter` after each step; row r's token i came at step_times_s[i]."""


class ReferenceModel:
    """A Hugging Face model in float32 with `generate`, greedy or with beams. Only beams end at an end token."""

    def __init__(self, path: Path, num_threads: int | None = None) -> None:
        """Load the GGUF file at `path`; about ten seconds for the default model.

        num_threads: torch's threads in this process; torch decides when None.
        """
        import transformers

        transformers.utils.logging.disable_progress_bar()
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32, local_files_only=True
        )
        self.model.eval()
        self.model.generation_config.eos_token_id = None
        self._pad_token_id = 0

    def answer(self, prompt_token_ids: Sequence[int], max_tokens: int) -> ReferenceAnswer:
        """Return the greedy answer to one prompt, alone in its batch."""
        output = self._generate([list(prompt_token_ids)], max_tokens, output_logits=True)
        token_ids = output.sequences[0, len(prompt_token_ids) :].tolist()
        ties = {}
        for position, logits in enumerate(output.logits):
            close = torch.nonzero(logits[0] > logits[0].max() - TIE_TOLERANCE).flatten().tolist()
            others = tuple(token for token in close if token != token_ids[position])
            if others:
                ties[position] = others
        return ReferenceAnswer(tuple(token_ids), ties)

    def beams(
        self, prompt_token_ids: Sequence[int], width: int, max_tokens: int, end_token_ids: Iterable[int]
    ) -> tuple[Beam, ...]:
        """Return the `width` answers of a beam search of that width, best first."""
        ends = sorted(end_token_ids)
        output = self._generate(
            [list(prompt_token_ids)],
            max_tokens,
            num_beams=width,
            num_return_sequences=width,
            eos_token_id=ends or None,
            output_scores=True,
        )
        rows = output.sequences[:, len(prompt_token_ids) :].tolist()
        return tuple(
            Beam(_up_to_end(row, ends), score)
            for row, score in zip(rows, output.sequences_scores.tolist(), strict=True)
        )

    def answer_batch(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> BatchAnswer:
        """Return the greedy answers to a static batch, padded on the left, all `max_tokens` long."""
        watch = _stopwatch()
        output = self._generate([list(prompt) for prompt in prompts], max_tokens, stopping_criteria=watch)
        width = max(len(prompt) for prompt in prompts)
        return BatchAnswer(output.sequences[:, width:].tolist(), watch[0].times_s)

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the logits after each token of one prompt, float32 [T, vocab]."""
        with torch.inference_mode():
            logits: torch.Tensor = self.model(torch.tensor([list(token_ids)])).logits[0]
        return logits

    def _generate(self, prompts: list[list[int]], max_tokens: int, **options: Any) -> Any:
        width = max(len(prompt) for prompt in prompts)
        padded = [[self._pad_token_id] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        with torch.inference_mode():
            return self.model.generate(
                torch.tensor(padded),
                attention_mask=torch.tensor(mask),
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=self._pad_token_id,
                return_dict_in_generate=True,
                **options,
            )


def _up_to_end(row: Sequence[int], end_token_ids: Sequence[int]) -> tuple[int, ...]:
    """Cut the padding behind the first end token."""
    length = next((i for i, token_id in enumerate(row, 1) if token_id in end_token_ids), len(row))
    return tuple(row[:length])


def _stopwatch() -> Any:
    """Return a stopping criterion that never stops and notes when each step ended."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Stopwatch(StoppingCriteria):  # type: ignore[misc]  # its base carries no types
        def __init__(self) -> None:
            self.times_s: list[float] = []

        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            self.times_s.append(time.perf_counter())
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    return StoppingCriteriaList([Stopwatch()])
