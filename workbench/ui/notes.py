"""One line of words under a control."""

from __future__ import annotations

import html


def note(text: str, *, is_error: bool = False) -> str:
    """Return the HTML of a note; a screen reader tells it, an error at once. No text, no note."""
    css, role = ("wb-note-error", "alert") if is_error else ("wb-note", "status")
    return f'<p class="{css}" role="{role}">{html.escape(text)}</p>' if text else ""
