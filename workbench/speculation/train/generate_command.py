"""Let the default model answer the training prompts, or the held-out ones.

May be killed at any time: the same command goes on where the last shard ends.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from workbench.config import DEFAULT_MODEL, EngineConfig
from workbench.errors import ConfigurationError
from workbench.speculation.train.draws import sampling_for
from workbench.speculation.train.parts import Part
from workbench.speculation.train.prompts import Conversation, conversations, fingerprint_text

if TYPE_CHECKING:
    from workbench.engine.core import EngineCore
    from workbench.speculation.train.generate import Progress

NUM_CONVERSATIONS: Final = {Part.TRAIN: 10_000, Part.HELD_OUT: 400}
NUM_BLOCKS: Final = 3072
"""Enough for 64 answers of 700 tokens at once: 2.2 GB."""
REPORT_EVERY_S: Final = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `generate`."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the shards")
    parser.add_argument("--tokens", type=int, default=1_000_000, metavar="N", help="tokens to generate in all")
    parser.add_argument("--held-out", action="store_true", help="answer the prompts that training never sees")
    parser.add_argument("--seed", type=int, default=0, help="of prompts, temperatures and draws")
    parser.add_argument("--max-num-seqs", type=int, default=64, help="answers under way at once")


def run(args: argparse.Namespace) -> None:
    """Generate, or go on generating.

    Raises:
        ConfigurationError: the folder holds shards of other prompts or settings.
    """
    part = Part.HELD_OUT if args.held_out else Part.TRAIN
    made = conversations(part, NUM_CONVERSATIONS[part], args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    claim_folder(args.out, part, args.seed, made)

    # Here, since the switches of `prepare_process` act on these libraries only before they are imported.
    from workbench.engine.loading import engine_thread_mode
    from workbench.speculation.train.generate import Generation

    config = EngineConfig(model=DEFAULT_MODEL, num_blocks=NUM_BLOCKS, max_num_seqs=args.max_num_seqs)
    with engine_thread_mode():
        core = load_core(config)
        generation = Generation(core, made, functools.partial(sampling_for, part, seed=args.seed), args.out)
        log(f"{generation.num_tokens:,} of {args.tokens:,} tokens are there already")
        generation.run(args.tokens, ProgressLine(args.tokens))
        log(f"{generation.num_tokens:,} generated tokens in {args.out}")


def load_core(config: EngineConfig) -> EngineCore:
    """Return an engine core that belongs to the calling thread."""
    from workbench.engine.loading import load_engine

    loaded = load_engine(config, 0, lambda _: None)
    for notice in loaded.notices:
        log(notice)
    return loaded.core


def claim_folder(folder: Path, part: Part, seed: int, made: list[Conversation]) -> None:
    """Note in the folder what its shards answer, or check that it is the same.

    Raises:
        ConfigurationError: the folder's shards answer something else.
    """
    mine = {
        "part": str(part),
        "seed": seed,
        "model": DEFAULT_MODEL,
        "prompts_sha256": hashlib.sha256(fingerprint_text(made).encode()).hexdigest(),
    }
    note = folder / "run.json"
    if not note.exists():
        note.write_text(json.dumps(mine, indent=1) + "\n", encoding="utf-8")
    theirs = json.loads(note.read_text(encoding="utf-8"))
    if theirs != mine:
        raise ConfigurationError(
            f"{folder} holds answers to other prompts ({theirs}) than those asked for ({mine}): name another --out"
        )


class ProgressLine:
    """Says now and then how far the run is."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._next_s = 0.0

    def __call__(self, progress: Progress) -> None:
        """Take the state after a step."""
        if progress.elapsed_s < self._next_s:
            return
        self._next_s = progress.elapsed_s + REPORT_EVERY_S
        rate = progress.num_tokens_now / max(progress.elapsed_s, 1e-9)
        left_s = (self._num_tokens - progress.num_tokens) / max(rate, 1e-9)
        log(f"{progress.num_tokens:,} / {self._num_tokens:,} tokens, {rate:.0f} tok/s, {left_s / 60:.0f} min left")


def log(message: str) -> None:
    """Tell a person how it is going, on standard error."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {message}\n")
