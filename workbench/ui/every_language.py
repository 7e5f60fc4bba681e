"""The scheduler's decisions in words, for the live feed: one frame goes to everybody, whatever they read."""

from __future__ import annotations

from typing import Final

from workbench.telemetry.records import CacheMiss, Explanation
from workbench.ui.explain import explain, explain_miss
from workbench.ui.texts import CHINESE, ENGLISH

_ALL: Final = (ENGLISH, CHINESE)
"""In the order of `LANGUAGES` in language.js."""


class EveryLanguage:
    """Gives each sentence in every language, one to a line; the page picks its own (`wb.ownLine`)."""

    def explain(self, explanation: Explanation) -> str:
        """A decision of the scheduler as one sentence with its numbers, in every language."""
        return "\n".join(explain(explanation, say) for say in _ALL)

    def explain_miss(self, miss: CacheMiss | None, differs_at: int | None = None) -> str:
        """Why no more of a context was found in the cache, in every language; empty when nothing was missing."""
        return "" if miss is None else "\n".join(explain_miss(miss, differs_at, say) for say in _ALL)
