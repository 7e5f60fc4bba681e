"""The header strip (model, backend, live figures, feed) and the bottom line."""

from __future__ import annotations

import html
from typing import Protocol

import gradio as gr

from workbench.ui.components.assets import mount_script, template
from workbench.ui.components.machine import describe_machine


class RestartDoor(Protocol):
    """What the strip needs of `engine.service.EngineService`."""

    def restart(self) -> None:
        """Build the engine anew with the settings in force; blocks until it serves again."""


def header_strip(service: RestartDoor | None = None) -> gr.HTML:
    """Return the strip above the tabs. It feeds itself from the live feed.

    Args:
        service: the engine door, which the error's banner offers to restart; None where there is no engine.
    """

    def restart_engine(_: None) -> str:
        """Restart, and return why that failed, empty when it did not: the feed tells of the engine itself."""
        assert service is not None
        try:
            service.restart()
        except Exception as error:  # noqa: BLE001 - whatever keeps an engine from starting is told
            return str(error) or type(error).__name__
        return ""

    return gr.HTML(
        value=None,
        html_template=template("header"),
        js_on_load=mount_script("header", has_server=service is not None),
        server_functions=None if service is None else [restart_engine],
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
