"""Prompts of many kinds, made offline from templates: what the target model is asked to write training text for."""

from __future__ import annotations

import itertools
import json
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workbench.speculation.train.parts import Part
from workbench.speculation.train.slots import Filler
from workbench.speculation.train.texts import Texts, read_texts

TEMPLATES: Final = Path(__file__).parent / "templates"
SYSTEM: Final = "system: "
"""What a turn begins with that is a system prompt."""
ATTEMPTS: Final = 12
"""How often a template's slots are filled anew before it is passed over as used up."""

Entry = str | Sequence[str]
"""One user turn, or several."""


@dataclass(frozen=True)
class Conversation:
    """What a user says, turn by turn; the answers between are the model's own."""

    kind: str
    system: str | None
    turns: tuple[str, ...]


def read_templates(part: Part) -> dict[str, tuple[Entry, ...]]:
    """Return kind → templates of a part."""
    found = tomllib.loads((TEMPLATES / f"{part}.toml").read_text(encoding="utf-8"))
    return {kind: tuple(entries) for kind, entries in found.items()}


def read_lists() -> dict[str, tuple[str, ...]]:
    """Return slot → subjects."""
    found = tomllib.loads((TEMPLATES / "lists.toml").read_text(encoding="utf-8"))
    return {name: tuple(entries) for name, entries in found.items()}


def conversations(part: Part, count: int, seed: int = 0) -> list[Conversation]:
    """Return `count` different conversations; any first n of them are a balanced mix of kinds and templates.

    Kinds take turns, and within a kind its templates do. The same seed gives the same conversations
    wherever the standard library, from which the given texts come, is the same.
    """
    made = list(itertools.islice(_stream(part, seed), count))
    assert len(made) == count, f"the templates of {part} give only {len(made)} different conversations"
    return made


def _stream(part: Part, seed: int) -> Iterator[Conversation]:
    lists, texts = read_lists(), read_texts()[part]
    kinds = {kind: _of_kind(part, kind, entries, lists, texts, seed) for kind, entries in read_templates(part).items()}
    while kinds:
        for kind in list(kinds):
            conversation = next(kinds[kind], None)
            if conversation is None:
                del kinds[kind]
            else:
                yield conversation


def _of_kind(
    part: Part, kind: str, entries: Sequence[Entry], lists: Mapping[str, Sequence[str]], texts: Texts, seed: int
) -> Iterator[Conversation]:
    """Conversations of one kind, until every template is used up."""
    rng = random.Random(f"{seed} {part} {kind}")
    left, seen = list(entries), set[Conversation]()
    while left:
        rng.shuffle(left)
        for entry in list(left):
            for _ in range(ATTEMPTS):
                made = _fill(kind, entry, Filler(part, lists, texts, rng))
                if made not in seen:
                    seen.add(made)
                    yield made
                    break
            else:
                left.remove(entry)


def _fill(kind: str, entry: Entry, filler: Filler) -> Conversation:
    turns = [filler.fill(turn) for turn in ([entry] if isinstance(entry, str) else entry)]
    system = turns.pop(0).removeprefix(SYSTEM) if turns[0].startswith(SYSTEM) else None
    return Conversation(kind, system, tuple(turns))


def fingerprint_text(made: Sequence[Conversation]) -> str:
    """Return the conversations as one text, of which a hash tells two lists apart."""
    return json.dumps([[one.kind, one.system, one.turns] for one in made])
