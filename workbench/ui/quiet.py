"""How an event is wired that shows no progress on the widgets that it changes."""

from __future__ import annotations

from typing import Any, Final

QUIET: Final[dict[str, Any]] = {
    "show_progress": "hidden",
    # Progress that is only hidden is still told to every output, at every update of a streaming answer, and the page
    # copies each output's value for that: the whole conversation (a fifth of its main thread while an answer streams).
    "show_progress_on": [],
    "api_visibility": "private",
}
"""Options of a private event without any progress."""
