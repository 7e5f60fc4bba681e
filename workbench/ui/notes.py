"""One line of words under a control."""

from __future__ import annotations

import html

from gradio.i18n import I18nData


def note(text: str | I18nData, *, is_error: bool = False) -> str:
    """Return the HTML of a note; a screen reader tells it, an error at once. No text, no note.

    `localized` words are translated in the browser.
    """
    words = str(text) if isinstance(text, I18nData) else html.escape(text)
    css, role = ("wb-note-error", "alert") if is_error else ("wb-note", "status")
    return f'<p class="{css}" role="{role}">{words}</p>' if text else ""
