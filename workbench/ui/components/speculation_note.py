"""The line under the methods of drafting: which this engine cannot offer, and why."""

from __future__ import annotations

import gradio as gr

from workbench.ui.components.assets import mount_script, template


def speculation_note() -> gr.HTML:
    """Return the line. It follows the engine's status, and disables the methods that it speaks of."""
    return gr.HTML(
        value=None,
        html_template=template("speculation_note"),
        js_on_load=mount_script("speculationNote"),
        apply_default_css=False,
        elem_id="wb-speculation-note",
        elem_classes="wb-form-note",
        show_label=False,
    )
