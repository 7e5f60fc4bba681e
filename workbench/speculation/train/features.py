"""What the target computes of the texts that a head is trained on, kept in files beside the texts, never in the tree.

For every position of a text: the hidden state after the final norm, as float16; the token that the target
would choose there at temperature 0; and the logarithm of the sum of all exponentiated logits, by which the
probability of any token follows from its logit. 1.2 kB a position for SmolLM2-135M.

A file holds a run of texts and is named by the SHA-256 of them and of the model. So a run that was killed goes
on where it was, more texts behind the old ones compute what is new, and nothing stale is ever taken.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from kernels.ops import AttentionMetadata, kv_cache_shapes
from workbench.config import EngineConfig
from workbench.models.llama import LlamaForCausalLM
from workbench.speculation.train.sequences import GeneratedSequence

BATCH_TOKENS: Final = 512
"""Tokens that go through the target together."""
FILE_TOKENS: Final = 20_000
"""Most positions of a file: a minute or more of work, some 24 MB."""
BLOCK_SIZE: Final = EngineConfig().block_size
"""The engine's own: another one may sum in another order."""


@dataclass(frozen=True)
class Features:
    """What the target computes of one text."""

    hidden: torch.Tensor
    """float16 [L, C]"""
    best: torch.Tensor
    """int32 [L]: the likeliest token behind each position."""
    log_total: torch.Tensor
    """float32 [L]: log of the sum of exp(logits)."""


class FeatureFiles:
    """The features of a list of texts in a folder, computed where they are missing."""

    def __init__(self, folder: Path, sequences: Sequence[GeneratedSequence], model_sha256: str) -> None:
        """Nothing is computed or read yet. `model_sha256`: of the target's file."""
        self._folder, self._model_sha256 = folder, model_sha256
        self._runs = list(_runs_of(sequences, FILE_TOKENS))
        self._paths = [folder / f"features-{self._name_of(run)}.safetensors" for run in self._runs]
        self._places = [
            (path, sum(len(one.token_ids) for one in run[:number]))
            for path, run in zip(self._paths, self._runs, strict=True)
            for number in range(len(run))
        ]
        self._lengths = [len(one.token_ids) for one in sequences]
        self._handles: dict[Path, Any] = {}

    def _name_of(self, run: Sequence[GeneratedSequence]) -> str:
        digest = hashlib.sha256(f"{self._model_sha256} {BLOCK_SIZE}\n".encode())
        for one in run:
            digest.update(np.array([len(one.token_ids), *one.token_ids], np.int32).tobytes())
        return digest.hexdigest()[:24]

    @property
    def num_missing_tokens(self) -> int:
        """Positions whose features are not there yet."""
        return sum(
            len(one.token_ids)
            for path, run in zip(self._paths, self._runs, strict=True)
            if not path.exists()
            for one in run
        )

    def compute(self, model: LlamaForCausalLM, on_tokens: Callable[[int], None] = lambda _: None) -> None:
        """Compute what is missing, file after file. on_tokens: called with the positions of each text."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path, run in zip(self._paths, self._runs, strict=True):
            if path.exists():
                continue
            found = []
            for features in compute_features(model, run):
                found.append(features)
                on_tokens(len(features.best))
            unfinished = path.with_suffix(".tmp")
            names = ("hidden", "best", "log_total")
            save_file({name: torch.cat([getattr(each, name) for each in found]) for name in names}, unfinished)
            unfinished.replace(path)

    def __getitem__(self, number: int) -> Features:
        """Return the features of one text, by its number in the list. Its file must be there."""
        path, start = self._places[number]
        if path not in self._handles:
            self._handles[path] = safe_open(path, framework="pt")
        end = start + self._lengths[number]
        return Features(*(self._handles[path].get_slice(name)[start:end] for name in ("hidden", "best", "log_total")))


def _runs_of(sequences: Sequence[GeneratedSequence], most: int) -> Iterator[list[GeneratedSequence]]:
    """Consecutive texts of at most so many tokens together; a longer one stands alone."""
    run: list[GeneratedSequence] = []
    count = 0
    for one in sequences:
        if run and count + len(one.token_ids) > most:
            yield run
            run, count = [], 0
        run.append(one)
        count += len(one.token_ids)
    if run:
        yield run


@torch.inference_mode()
def compute_features(model: LlamaForCausalLM, sequences: Sequence[GeneratedSequence]) -> Iterator[Features]:
    """Yield the features of texts in their order, bitwise what the engine computes on the same kernels."""
    batches = [[len(one.token_ids) for one in run] for run in _runs_of(sequences, BATCH_TOKENS)]
    caches = _caches(model, max((sum(map(_blocks_of, lengths)) for lengths in batches), default=0))
    texts = iter(sequences)
    for lengths in batches:
        yield from _compute_batch(model, list(itertools.islice(texts, len(lengths))), caches)


def _compute_batch(
    model: LlamaForCausalLM, sequences: Sequence[GeneratedSequence], caches: list[tuple[torch.Tensor, torch.Tensor]]
) -> list[Features]:
    """Several texts at once, or one long text in pieces."""
    lengths = [len(one.token_ids) for one in sequences]
    token_ids = torch.tensor([token_id for one in sequences for token_id in one.token_ids])
    found = []
    for start in range(0, len(token_ids), BATCH_TOKENS):
        end = min(start + BATCH_TOKENS, len(token_ids))
        metadata = _metadata(lengths) if len(lengths) > 1 else _metadata([end - start], start)
        hidden = model.forward(token_ids[start:end], [metadata] * len(model.config.layer_groups), caches)
        logits = model.compute_logits(hidden)
        found.append(Features(hidden.half(), logits.argmax(dim=-1).int(), logits.logsumexp(dim=-1)))
    parts = (torch.cat([getattr(each, name) for each in found]) for name in ("hidden", "best", "log_total"))
    return list(itertools.starmap(Features, zip(*(part.split(lengths) for part in parts), strict=True)))


def _metadata(counts: Sequence[int], first: int = 0) -> AttentionMetadata:
    """Texts in blocks behind one another; `first`: position at which the only one goes on."""
    num_blocks = [_blocks_of(first + count) for count in counts]
    first_blocks = [0, *itertools.accumulate(num_blocks)][:-1]
    tables = [list(range(start, start + max(num_blocks))) for start in first_blocks]
    positions = torch.cat([torch.arange(first, first + count) for count in counts])
    bases = torch.repeat_interleave(torch.tensor(first_blocks) * BLOCK_SIZE, torch.tensor(counts))
    return AttentionMetadata(
        query_start=torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32),
        seq_lens=torch.tensor([first + count for count in counts], dtype=torch.int32),
        block_tables=torch.tensor(tables, dtype=torch.int32),
        slot_mapping=bases + positions,
        positions=positions,
    )


def _blocks_of(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


def _caches(model: LlamaForCausalLM, num_blocks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    config = model.config
    shapes = kv_cache_shapes(num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_size)
    return [(torch.zeros(shapes[0]), torch.zeros(shapes[1])) for _ in range(config.num_layers)]
