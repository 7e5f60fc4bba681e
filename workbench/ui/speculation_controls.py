"""The controls of drafting: they belong to the visitor and hold from the next message on."""

from __future__ import annotations

from typing import Any, Final

import gradio as gr

from workbench.speculation_params import MAX_LOOKUP, MAX_SPECULATIVE_TOKENS
from workbench.ui.components.speculation_note import speculation_note
from workbench.ui.localized import localized
from workbench.ui.sliders import slider

METHOD_WORDS: Final = (
    ("none", "Off"),
    ("ngram", "ngram"),
    ("draft_model", "draft"),
    ("eagle", "eagle"),
    ("hybrid", "hybrid"),
)
"""Methods of drafting as the page calls them, in the order of `speculation_params.METHODS`."""


def speculation_section(shown: dict[str, Any]) -> dict[str, gr.components.Component]:
    """Lay out the accordion; return its controls by the form's names for them."""
    with (
        gr.Accordion(localized("Speculation"), open=True, elem_classes="wb-section wb-yours", elem_id="wb-drafting"),
        gr.Row(elem_classes="wb-form"),
    ):
        method = gr.Radio(
            [(localized(words), name) for name, words in METHOD_WORDS],
            value=shown["method"],
            show_label=False,
            label=localized("Method of drafting"),
            elem_classes=["wb-choice", "wb-full"],
            elem_id="wb-method",
        )
        count = slider(
            1,
            MAX_SPECULATIVE_TOKENS,
            1,
            shown["num_speculative_tokens"],
            "Max K",
            elem_id="wb-num-speculative-tokens",
        )
        adaptive = gr.Checkbox(
            shown["speculative_adaptive"],
            label=localized("Adaptive K"),
            elem_classes="wb-check",
            elem_id="wb-speculative-adaptive",
            min_width=0,
        )
        speculation_note()
    return {"method": method, "num_speculative_tokens": count, "speculative_adaptive": adaptive}


def drafting_details(shown: dict[str, Any]) -> dict[str, gr.components.Component]:
    """Lay out what only some methods of drafting need."""
    return {
        "draft_confidence": slider(
            0,
            0.95,
            0.01,
            shown["draft_confidence"],
            "Draft confidence",
            "Of drafts by a head or a model: a draft ends where its own guess of the chance to be right falls below "
            "this. 0 is off.",
            "wb-draft-confidence",
        ),
        "prompt_lookup_min": slider(
            1,
            MAX_LOOKUP,
            1,
            shown["prompt_lookup_min"],
            "Shortest lookup",
            "Of ngram drafts: fewest last tokens that are looked up in the context.",
            "wb-prompt-lookup-min",
        ),
        "prompt_lookup_max": slider(
            1,
            MAX_LOOKUP,
            1,
            shown["prompt_lookup_max"],
            "Longest lookup",
            "Most of them; longer matches come first.",
            "wb-prompt-lookup-max",
        ),
    }
