"""Which texts, subjects and templates belong to training and which are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

HELD_OUT_EVERY: Final = 8
"""One in so many texts and subjects is held out."""
DIVIDED_FROM: Final = 24
"""A list of subjects is divided from so many entries on; shorter ones serve both parts."""


class Part(StrEnum):
    """What a prompt is for."""

    TRAIN = "train"
    HELD_OUT = "held_out"


PACKED: Final = {part: Path(__file__).parent / "data" / f"{part}.npz" for part in Part}
"""What the default model wrote for the head that comes with the workbench, as `pack` gathers it."""


def part_of(name: str) -> Part:
    """Return the part that a text with this name belongs to, the same on every machine."""
    return Part.HELD_OUT if _number_of(name) % HELD_OUT_EVERY == 0 else Part.TRAIN


def is_training_topic(name: str) -> bool:
    """Whether a topic of `pydoc_data` may be shown to the head; the other half is for measuring perplexity."""
    return _number_of(f"topic {name}") % 2 == 0


def entries_of(entries: Sequence[str], part: Part) -> Sequence[str]:
    """Return the part's share of a list of subjects."""
    if len(entries) < DIVIDED_FROM:
        return entries
    return [
        entry
        for index, entry in enumerate(entries)
        if (index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) == (part is Part.HELD_OUT)
    ]


def _number_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
