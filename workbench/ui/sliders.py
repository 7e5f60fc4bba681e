"""A slider of the sidebar."""

from __future__ import annotations

import gradio as gr

from workbench.ui.localized import localized


def slider(
    low: float, high: float, step: float, value: float, label: str, info: str | None = None, elem_id: str | None = None
) -> gr.Slider:
    """Lay out a slider; one that is explained takes the whole width."""
    return gr.Slider(
        low,
        high,
        value,
        step=step,
        label=localized(label),
        info=info and localized(info),
        elem_classes=["wb-slider", "wb-full"] if info else ["wb-slider"],
        elem_id=elem_id,
        min_width=0,
    )
