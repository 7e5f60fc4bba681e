"""Slots of the templates: `{name}` is filled from a list of subjects, a given text, or a small invention."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from workbench.speculation.train.parts import Part, entries_of
from workbench.speculation.train.texts import Function, Texts

SLOT: Final = re.compile(r"(\b[Aa] )?\{([a-z_]+)(\d?)\}")
"""A digit behind the name asks for another draw: `{city}` and `{city2}` differ. An article fits what follows it."""

WORD_LISTS: Final = ("adjective", "animal", "city", "food", "material", "country")
TABLES: Final[dict[tuple[str, ...], tuple[str | tuple[int, int], ...]]] = {
    ("name", "city", "age"): ("person", "city", (18, 90)),
    ("item", "price", "stock"): ("product", (5, 400), (0, 90)),
    ("city", "year", "visitors"): ("city", (1990, 2024), (200, 9000)),
    ("animal", "food", "weight"): ("animal", "food", (1, 80)),
}
"""Header of a table → what its columns hold."""
DRAWS: Final = 20
"""How often another value is drawn before two slots may hold the same one."""


class Filler:
    """Fills the slots of one prompt. All its turns share the draws, so that `{animal}` is one animal throughout."""

    def __init__(self, part: Part, lists: Mapping[str, Sequence[str]], texts: Texts, rng: random.Random) -> None:
        self._part, self._lists, self._texts, self._rng = part, lists, texts, rng
        self._drawn: dict[str, str] = {}
        self._function: Function | None = None

    def fill(self, template: str) -> str:
        """Return the template with every slot filled, also those in what the slots were filled with.

        Raises:
            KeyError: a slot that nothing fills.
        """
        return SLOT.sub(lambda match: _after_article(match[1] or "", self._value(match[2], match[3])), template)

    def _value(self, name: str, digit: str) -> str:
        key = name + digit
        if key not in self._drawn:
            taken = {value for other, value in self._drawn.items() if other.rstrip(string.digits) == name}
            value = self._draw(name)
            for _ in range(DRAWS):
                if value not in taken:
                    break
                value = self._draw(name)
            self._drawn[key] = value
        return self._drawn[key]

    def _draw(self, name: str) -> str:
        if name in self._lists:
            entry = self._rng.choice(entries_of(self._lists[name], self._part))
            # A text of its own: two sentences in one prompt do not speak of the same person.
            return Filler(self._part, self._lists, self._texts, self._rng).fill(entry)
        return INVENTIONS[name](self)

    # ------------------------------------------------------------------------- inventions

    @property
    def rng(self) -> random.Random:
        """The random numbers of this prompt."""
        return self._rng

    @property
    def texts(self) -> Texts:
        """The given texts of this prompt's part."""
        return self._texts

    @property
    def function(self) -> Function:
        """The one function that this prompt is about."""
        if self._function is None:
            self._function = self._rng.choice(self._texts.functions)
        return self._function

    def value(self, name: str) -> str:
        """Return what a slot is filled with."""
        return self._value(name, "")

    def another(self, name: str) -> str:
        """Return a new draw for a slot."""
        return self._draw(name)

    def words(self, count: int) -> list[str]:
        """Return different words of one kind."""
        entries = entries_of(self._lists[self._rng.choice(WORD_LISTS)], self._part)
        return self._rng.sample(list(entries), min(count, len(entries)))


def _after_article(article: str, value: str) -> str:
    return (f"{article[0]}n " if article and value[0] in "aeiou" else article) + value


def with_typos(text: str, rng: random.Random) -> str:
    """Swap, drop or double a letter in about one word of six."""
    return " ".join(_misspelled(word, rng) if rng.random() < 1 / 6 else word for word in text.split(" "))


def _misspelled(word: str, rng: random.Random) -> str:
    if len(word) < 4 or not word.isalpha():
        return word
    at = rng.randrange(1, len(word) - 2)
    kind = rng.randrange(3)
    if kind == 0:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return word[:at] + word[at + 1 :] if kind == 1 else word[:at] + word[at] + word[at:]


def with_bug(source: str, rng: random.Random) -> str:
    """Break a function as people do: a colon or a bracket is lost, an operator is the wrong one."""
    bugs = [
        ("):\n", ")\n"),
        (" == ", " = "),
        (" is None", " is not None"),
        ("return ", ""),
        ("self.", ""),
        (" + ", " - "),
    ]
    possible = [(old, new) for old, new in bugs if old in source] or [("(", "")]
    old, new = rng.choice(possible)
    return source.replace(old, new, 1)


def _table(filler: Filler) -> list[list[str]]:
    """A header and three to six rows."""
    rng = filler.rng
    header = rng.choice(tuple(TABLES))
    rows = ([_cell(filler, content) for content in TABLES[header]] for _ in range(rng.randint(3, 6)))
    return [list(header), *rows]


def _cell(filler: Filler, content: str | tuple[int, int]) -> str:
    """One value of a table: of a list of subjects, or a number between two bounds."""
    return (
        re.sub("^an? ", "", filler.another(content)) if isinstance(content, str) else str(filler.rng.randint(*content))
    )


def _json(filler: Filler) -> str:
    header, *rows = _table(filler)
    items = [
        ", ".join(f'"{key}": {_json_value(value)}' for key, value in zip(header, row, strict=True)) for row in rows
    ]
    return "[\n" + ",\n".join(f"  {{{item}}}" for item in items) + "\n]"


def _json_value(value: str) -> str:
    return value if value.isdigit() else f'"{value}"'


def _expression(filler: Filler) -> str:
    rng = filler.rng
    a, b, c = (rng.randint(2, 60) for _ in range(3))
    return rng.choice((f"{a} + {b} * {c}", f"({a} + {b}) * {c}", f"{a * c} / {c}", f"{a} - {b} + {c}", f"{a} squared"))


def _sequence(filler: Filler) -> str:
    rng = filler.rng
    first, step = rng.randint(1, 20), rng.randint(2, 9)
    if rng.random() < 0.3:
        return ", ".join(str(first * 2**i) for i in range(5))
    return ", ".join(str(first + step * i) for i in range(5))


def _sentence_word(filler: Filler) -> str:
    return filler.rng.choice(re.findall(r"\b[a-z]{4,}\b", filler.value("paragraph")))


INVENTIONS: Final[dict[str, Callable[[Filler], str]]] = {
    "number": lambda filler: str(filler.rng.randint(12, 980)),
    "small_number": lambda filler: str(filler.rng.randint(3, 12)),
    "year": lambda filler: str(filler.rng.randint(1871, 2019)),
    "hour": lambda filler: filler.rng.choice(("four", "five", "seven", "eight", "nine", "ten", "eleven")),
    "numbers": lambda filler: ", ".join(str(filler.rng.randint(1, 99)) for _ in range(filler.rng.randint(4, 7))),
    "expression": _expression,
    "sequence": _sequence,
    "bullet_list": lambda filler: "\n".join(f"- {word}" for word in filler.words(filler.rng.randint(4, 8))),
    "comma_list": lambda filler: ", ".join(filler.words(filler.rng.randint(4, 7))),
    "csv": lambda filler: "\n".join(",".join(row) for row in _table(filler)),
    "json": _json,
    "passage": lambda filler: filler.rng.choice(filler.texts.passages),
    "passage_with_typos": lambda filler: with_typos(filler.rng.choice(filler.texts.passages), filler.rng),
    "paragraph_with_typos": lambda filler: with_typos(filler.value("paragraph"), filler.rng),
    "paragraph_without_punctuation": lambda filler: re.sub(r"[.,;:]", "", filler.value("paragraph")).lower(),
    "paragraph_word": _sentence_word,
    "docstring": lambda filler: filler.rng.choice(filler.texts.docstrings),
    "code": lambda filler: filler.function.source,
    "code_name": lambda filler: filler.function.name,
    "code_with_bug": lambda filler: with_bug(filler.function.source, filler.rng),
}
