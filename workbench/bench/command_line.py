"""The part of the command line that all bench commands share."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from workbench.config import EngineConfig
from workbench.errors import ConfigurationError
from workbench.presets import DEFAULT_PRESET, load_presets, select_preset


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--preset` and `--engine NAME=VALUE`."""
    parser.add_argument("--preset", default=DEFAULT_PRESET, help="preset whose engine settings are used")
    parser.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override one EngineConfig field, for example --engine max_num_seqs=8; may be repeated",
    )


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """Return the configuration that `--preset` and `--engine` ask for.

    Prefix caching is off unless it is asked for: rounds repeat their prompts, and each is to compute them.

    Raises:
        ConfigurationError: unknown preset or field, or a value out of range.
    """
    preset = select_preset(load_presets(), args.preset)
    overrides = {"enable_prefix_caching": False, **dict(_read_override(text) for text in args.engine)}
    return preset.engine_config(**overrides)


def _read_override(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ConfigurationError(f"--engine {text!r} is not of the form NAME=VALUE, for example block_size=8")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


def as_settings(config: EngineConfig) -> dict[str, Any]:
    """Return the configuration as plain data for a report."""
    return dataclasses.asdict(config)


def log(message: str) -> None:
    """Tell a person how it is going, on standard error."""
    sys.stderr.write(message + "\n")


@contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """Yield the real standard output; until the end, all else that is written to it goes to standard error.

    Works on file descriptors, so it also catches libraries that print from C.
    """
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(real), "w", encoding="utf-8") as out:
            yield out
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)
