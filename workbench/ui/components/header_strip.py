"""The header strip (model, backend, live figures, feed) and the bottom line."""

from __future__ import annotations

import html
from typing import Final

import gradio as gr

from workbench.ui.components.assets import mount_script, template
from workbench.ui.components.machine import describe_machine

LIVE_FIGURES: Final = "Live figures: this machine, <span>MACHINE</span>"
SAVED_FIGURES: Final = "Figures of a saved run, measured where it was computed"


def header_strip() -> gr.HTML:
    """Return the strip above the tabs. It feeds itself from the live feed."""
    return gr.HTML(
        value=None,
        html_template=template("header"),
        js_on_load=mount_script("header"),
        apply_default_css=False,
        elem_id="wb-header",
        elem_classes="wb-header-strip",
        show_label=False,
    )


def status_line(*, is_replay: bool = False) -> gr.HTML:
    """Return the bottom line: what the figures were measured on, and what the feed costs.

    A saved run (`is_replay`) does not tell which machine computed it; it need not be this one.
    """
    text = template("status_line")
    if is_replay:
        text = text.replace(LIVE_FIGURES, SAVED_FIGURES)
    return gr.HTML(
        value=None,
        html_template=text.replace("MACHINE", html.escape(describe_machine())),
        js_on_load=mount_script("statusLine"),
        apply_default_css=False,
        elem_id="wb-status-line",
        show_label=False,
    )
