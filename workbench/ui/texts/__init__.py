"""Every word of the page in the visitor's language.

The English stands where it is used and is the key to `zh.json`; numbers and names go into its
placeholders. Python asks `Texts`, the page's scripts ask `wb.text`, and Gradio's labels are
`localized`.
All three read the same table; a test finds every text that is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Final

from workbench.ui import numbers

CHINESE_TABLE: Final[Mapping[str, str]] = json.loads(Path(__file__).with_name("zh.json").read_text(encoding="utf-8"))
TABLES: Final[Mapping[str, Mapping[str, str]]] = {"en": {}, "zh": CHINESE_TABLE}
"""By language. English needs no table: it is what stands in the code."""
COOKIE: Final = "wb-language"
"""What the visitor chose, or the browser's language at the first visit; written by language.js."""


@dataclass(frozen=True)
class Texts:
    """The texts of one language."""

    language: str

    def __call__(self, english: str, **values: str | int | None) -> str:
        """Return a text with its placeholders filled in; whole numbers get thousands separators."""
        filled = {name: value if isinstance(value, str) else numbers.count(value) for name, value in values.items()}
        return TABLES[self.language].get(english, english).format(**filled)


ENGLISH: Final = Texts("en")
CHINESE: Final = Texts("zh")


def language_of(cookies: str, accepted: str) -> str:
    """Return the language that a request's headers ask for: the visitor's choice, else the browser's first."""
    try:
        chosen = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        chosen = None
    if chosen is not None and chosen.value in TABLES:
        return chosen.value
    return "zh" if accepted.strip().lower().startswith("zh") else "en"
