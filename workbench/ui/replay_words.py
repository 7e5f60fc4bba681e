"""What the page of a saved run says in the place of what only an engine can do."""

from __future__ import annotations

from typing import Final

from workbench.ui.localized import localized

NOTHING_IS_COMPUTED: Final = localized(
    "This is a saved run: nothing is computed. Start the workbench without --replay to ask a model."
)
# One text, whose first line stands out.
EMPTY_CHAT: Final = localized(
    "This is a saved run: nothing is computed.\n"
    "Its blocks and its timeline are in the other tabs. Start the workbench without --replay to ask a model."
)
