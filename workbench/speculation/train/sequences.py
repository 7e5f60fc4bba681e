"""What the target wrote, and the files that hold it.

A file is an uncompressed or compressed `.npz` with one row per sequence, in the order of the prompts:

- `tokens`, uint16: prompt and answer of the first sequence, then of the second, and so on;
- `lengths`, int32: tokens of each sequence, prompt and answer together;
- `prompt_lengths`, int32: how many of them are the prompt;
- `prompt_ids`, int32: number of the conversation, and `turns`, uint8: which of its answers this is;
- `temperatures`, float32: at which the answer was drawn.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from workbench.errors import ConfigurationError

LARGEST_TOKEN_ID: Final = 2**16 - 1


@dataclass(frozen=True)
class GeneratedSequence:
    """One answer behind its prompt, the turns before it included."""

    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    prompt_id: int
    turn: int
    temperature: float

    @property
    def num_generated(self) -> int:
        """Tokens of the answer."""
        return len(self.token_ids) - self.num_prompt_tokens


def write_sequences(path: Path, sequences: Sequence[GeneratedSequence], *, compressed: bool = False) -> None:
    """Write a file so that it is either there and whole, or not there.

    Raises:
        ConfigurationError: a token id that uint16 does not hold.
    """
    flat = [token_id for one in sequences for token_id in one.token_ids]
    if flat and max(flat) > LARGEST_TOKEN_ID:
        raise ConfigurationError(
            f"token id {max(flat)} is above {LARGEST_TOKEN_ID}: this model's vocabulary is too large"
        )
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        (np.savez_compressed if compressed else np.savez)(
            file,
            tokens=np.array(flat, np.uint16),
            lengths=np.array([len(one.token_ids) for one in sequences], np.int32),
            prompt_lengths=np.array([one.num_prompt_tokens for one in sequences], np.int32),
            prompt_ids=np.array([one.prompt_id for one in sequences], np.int32),
            turns=np.array([one.turn for one in sequences], np.uint8),
            temperatures=np.array([one.temperature for one in sequences], np.float32),
        )
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def read_sequences(path: Path) -> Iterator[GeneratedSequence]:
    """Yield the sequences of a file in their order."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    ends = np.cumsum(arrays["lengths"])
    for row, (end, length) in enumerate(zip(ends, arrays["lengths"], strict=True)):
        yield GeneratedSequence(
            tuple(arrays["tokens"][end - length : end].tolist()),
            int(arrays["prompt_lengths"][row]),
            int(arrays["prompt_ids"][row]),
            int(arrays["turns"][row]),
            round(float(arrays["temperatures"][row]), 4),
        )


def shard_path(folder: Path, number: int) -> Path:
    """Return the file of a shard."""
    return folder / f"shard-{number:04d}.npz"


def shard_paths(folder: Path) -> list[Path]:
    """Return the finished shards of a folder in their order."""
    return sorted(folder.glob("shard-*.npz"))


def pack(paths: Iterable[Path], target: Path) -> int:
    """Gather shards into one compressed file; return how many tokens the model wrote."""
    sequences = [one for path in paths for one in read_sequences(path)]
    write_sequences(target, sequences, compressed=True)
    return sum(one.num_generated for one in sequences)
