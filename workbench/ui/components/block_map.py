"""The block map and its compact form beside the chat, as Gradio components."""

from __future__ import annotations

from typing import Any, Protocol

import gradio as gr
import msgspec

from workbench.errors import WorkbenchError
from workbench.ui.components.assets import mount_script, template


class DetailsDoor(Protocol):
    """What the map needs of `engine.service.EngineService`."""

    def block_details(self, block_id: int) -> Any:
        """`BlockDetails`, asked of the engine thread; blocks for some milliseconds."""


def block_map(service: DetailsDoor, *, show_token_text: bool = True) -> gr.HTML:
    """Return the map with its panels. States come over the live feed, decoded tokens on demand.

    Args:
        service: the engine door.
        show_token_text: whether decoded tokens may be shown; False where strangers share the page.
    """

    def block_details(block_id: int) -> dict[str, Any]:
        """Owners, token ids and decoded tokens of one block; `error` when they cannot be had."""
        try:
            details: dict[str, Any] = msgspec.to_builtins(service.block_details(int(block_id)))
        except (WorkbenchError, IndexError) as error:  # the engine is loading, or its pool has shrunk since
            return {"block_id": block_id, "error": str(error)}
        if not show_token_text:
            details |= {"tokens": ["▪"] * len(details["tokens"]), "token_ids": [], "is_hidden": True}
        return details

    return gr.HTML(
        value=None,
        html_template=template("block_map"),
        js_on_load=mount_script("blockMap", has_server=True),
        apply_default_css=False,
        server_functions=[block_details],
        elem_id="wb-block-map",
        show_label=False,
    )


def compact_map() -> gr.HTML:
    """Return the small map for the chat page. Its value is the id of the request to follow, or None."""
    return gr.HTML(
        value=None,
        html_template=template("compact_map"),
        js_on_load=mount_script("compactMap"),
        apply_default_css=False,
        elem_id="wb-compact-map",
        show_label=False,
    )
