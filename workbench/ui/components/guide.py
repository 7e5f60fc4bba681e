"""The guided first run, as a Gradio component: a panel above the tabs that opens at the first visit and with "?"."""

from __future__ import annotations

import gradio as gr

from workbench.ui.components.assets import mount_script, template


def guide() -> gr.HTML:
    """Return the panel. It presses the page's own buttons and reads the live feed; the server knows nothing of it."""
    return gr.HTML(
        value=None,
        html_template=template("guide"),
        js_on_load=mount_script("guide"),
        apply_default_css=False,
        elem_id="wb-guide",
        show_label=False,
    )
