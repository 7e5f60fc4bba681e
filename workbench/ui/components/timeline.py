"""The scheduler's timeline with the step inspector, as a Gradio component."""

from __future__ import annotations

import gradio as gr

from workbench.ui.components.assets import mount_script, template


def timeline() -> gr.HTML:
    """Return the timeline with its panels. Steps come from `/history/steps`, reasons from `/history/step`."""
    return gr.HTML(
        value=None,
        html_template=template("timeline"),
        js_on_load=mount_script("timeline"),
        apply_default_css=False,
        elem_id="wb-timeline",
        show_label=False,
    )
