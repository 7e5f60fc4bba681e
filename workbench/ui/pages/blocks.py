"""The Blocks tab: one fixed cell for each physical KV block, live."""

from __future__ import annotations

from workbench.ui.components.block_map import DetailsDoor, block_map


def build_blocks_page(service: DetailsDoor, *, show_token_text: bool = True) -> None:
    """Fill the current `gr.Tab` with the block map.

    Args:
        service: the engine door.
        show_token_text: see `block_map`.
    """
    block_map(service, show_token_text=show_token_text)
