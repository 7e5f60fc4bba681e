"""The Timeline tab: what the scheduler did in each recorded step, a row for each request, and why."""

from __future__ import annotations

from workbench.ui.components.timeline import timeline


def build_timeline_page() -> None:
    """Fill the current `gr.Tab` with the timeline. It reads the server's history, not the engine."""
    timeline()
