"""The guided first run, as a Gradio component: a panel above the tabs that opens at the first visit and with "?"."""

from __future__ import annotations

import gradio as gr

from workbench.ui.components.assets import mount_script, template


def guide(*, can_act: bool = True) -> gr.HTML:
    """Return the panel. It presses the page's own buttons and reads the live feed; the server knows nothing of it.

    Its value is empty, or "idle" where no engine can be made to do something (`can_act`): its steps are then to read.
    """
    return gr.HTML(
        value="" if can_act else "idle",
        html_template=template("guide"),
        js_on_load=mount_script("guide"),
        apply_default_css=False,
        elem_id="wb-guide",
        show_label=False,
    )
