"""The header strip (model, backend, live figures, feed) and the bottom line."""

from __future__ import annotations

import html

import gradio as gr

from workbench.ui.components.assets import mount_script, template
from workbench.ui.components.machine import describe_machine


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


def status_line() -> gr.HTML:
    """Return the bottom line: what the figures were measured on, and what the feed costs.

    A saved run does not tell which machine computed it; it need not be this one.
    """
    return gr.HTML(
        value=None,
        html_template=template("status_line").replace("MACHINE", html.escape(describe_machine())),
        js_on_load=mount_script("statusLine"),
        apply_default_css=False,
        elem_id="wb-status-line",
        show_label=False,
    )
