"""Gather the shards of a generation into one compressed file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workbench.errors import ConfigurationError
from workbench.speculation.train.sequences import pack, shard_paths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pack`."""
    parser.add_argument("folder", type=Path, help="what `generate --out` named")
    parser.add_argument("target", type=Path, help="file to write, for example train.npz")


def run(args: argparse.Namespace) -> None:
    """Write the file.

    Raises:
        ConfigurationError: there are no shards in the folder.
    """
    paths = shard_paths(args.folder)
    if not paths:
        raise ConfigurationError(
            f"there are no shards in {args.folder}: name the folder that `generate --out` wrote to"
        )
    num_tokens = pack(paths, args.target)
    sys.stderr.write(
        f"{args.target}: {num_tokens:,} generated tokens of {len(paths)} shards, {args.target.stat().st_size:,} bytes\n"
    )
