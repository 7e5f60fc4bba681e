"""The buttons at the right of the tabs: language, help and theme."""

from __future__ import annotations

import gradio as gr

from workbench.ui.components.assets import mount_script, template


def page_tools() -> gr.HTML:
    """Return the buttons. All of it happens in the browser; the theme itself is set by page.js."""
    return gr.HTML(
        value=None,
        html_template=template("page_tools"),
        js_on_load=mount_script("pageTools"),
        apply_default_css=False,
        elem_id="wb-tools",
        show_label=False,
    )
