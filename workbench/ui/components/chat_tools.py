"""Copying and saving a conversation, done in the browser, and what a click on one of its messages asks for."""

from __future__ import annotations

import gradio as gr

from workbench.ui.components.assets import mount_script, template


def chat_tools() -> gr.HTML:
    """Return the card. Its value is `transcript.take_away`.

    `select` gives the place of a message to edit; `option_select` gives the places of a message and, within it, of the
    answer to go on with; `expand` gives them for the answer to show as tokens, or as text again.
    """
    return gr.HTML(
        value=None,
        html_template=template("chat_tools"),
        js_on_load=mount_script("chatTools"),
        apply_default_css=False,
        elem_id="wb-chat-tools",
        show_label=False,
    )
