"""The sidebar of a saved run: what the file tells of the engine that ran, and nothing to set."""

from __future__ import annotations

from typing import Any

import gradio as gr

from workbench.engine.service import EngineService
from workbench.ui.localized import localized
from workbench.ui.notes import note
from workbench.ui.replay_words import NOTHING_IS_COMPUTED
from workbench.ui.settings import EngineChanges
from workbench.ui.sidebar import BRAND, LAYOUT_WORDS


def build_replay_sidebar(service: EngineService) -> None:
    """Lay out the sidebar. Call inside the page."""
    with gr.Sidebar(width=272, elem_id="wb-sidebar"):
        gr.HTML(BRAND)
        with (
            gr.Accordion(localized("The engine that ran"), open=True, elem_classes="wb-section"),
            gr.Row(elem_classes="wb-form"),
        ):
            for label, value in _told(service):
                gr.Textbox(
                    value,
                    label=localized(label),
                    interactive=False,
                    max_lines=1,
                    elem_classes="wb-field wb-mono",
                    min_width=0,
                )
        with gr.Column(elem_classes="wb-apply"):
            gr.HTML(note(NOTHING_IS_COMPUTED), elem_id="wb-apply-note")
            gr.Button(localized(EngineChanges({}).button_label()), interactive=False, elem_id="wb-apply")


def _told(service: EngineService) -> list[tuple[str, Any]]:
    """Label and value of the settings that a file holds: the others would be guesses."""
    config, last = service.config, service.recorder.latest
    return [
        ("Block size", str(config.block_size)),
        ("Blocks", str(config.num_blocks)),
        ("Token budget", str(last.max_num_batched_tokens) if last is not None else "–"),
        ("Layout", localized(dict(LAYOUT_WORDS)[config.kv_layout])),
    ]
