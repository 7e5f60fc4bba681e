"""The Speculation tab: the same prompt with and without drafting, side by side, and what drafting brings."""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Any, Final

import gradio as gr

from workbench.engine.service import EngineService
from workbench.speculation_params import MAX_SPECULATIVE_TOKENS, SpeculationParams
from workbench.ui.comparison_handlers import ComparisonHandlers
from workbench.ui.comparison_markup import PROOF_ID
from workbench.ui.comparison_widgets import Chart, ComparisonWidgets
from workbench.ui.listeners import Listeners
from workbench.ui.localized import localized
from workbench.ui.quiet import QUIET
from workbench.ui.sidebar import Sidebar
from workbench.ui.speculation_controls import METHOD_WORDS
from workbench.ui.suggestions import SUGGESTIONS, Suggestion

COPIED_TOPIC: Final = "compound"
COPIED_CHARACTERS: Final = 700


def _passage() -> str:
    """A text of Python's own documentation, without its underlines."""
    words = [word for word in topics[COPIED_TOPIC].split() if set(word) - set("*=~-^")]
    return " ".join(words)[:COPIED_CHARACTERS]


EXAMPLES: Final = (
    Suggestion(
        "Repeat a passage",
        "Repeat this text word for word.\n\n" + _passage(),
    ),
    *SUGGESTIONS[1:],
)
"""Prompts to begin with: what is copied drafts well, what is invented does not."""
DRAFTING: Final = SpeculationParams(method="ngram")
"""What the tab begins with."""
PROOF: Final = (
    "What proves it: a drafted token is kept with the chance min(1, p/q) and replaced from the rest of p otherwise, "
    "which leaves the model's distribution p exactly as it is (arXiv 2211.17192). The test suite verifies 20,000 "
    "drafts of a tiny model for each way of sampling, and a chi-square test does not tell what comes out from the "
    "exact distribution; a verification broken on purpose is told apart. At temperature 0 the answers must be the same "
    "token for token. docs/speculation.md has the details."
)


def build_speculation_page(
    page: gr.Blocks, tab: gr.Tab, service: EngineService, sidebar: Sidebar, listeners: Listeners | None = None
) -> None:
    """Fill the current `gr.Tab` and wire its events."""
    widgets, examples = _lay_out()
    handlers = ComparisonHandlers(service, widgets, listeners)
    asked = [*widgets.asked, sidebar.system_prompt, *sidebar.sampling]
    # No limit here: the engine queues, and a comparison that waits must not keep others out.
    streaming: dict[str, Any] = {"outputs": widgets.outputs, "concurrency_limit": None, **QUIET}
    gr.on([widgets.run.click, widgets.prompt.submit], handlers.run, asked, **streaming)
    widgets.race.click(handlers.race, asked, **streaming)
    widgets.stop.click(handlers.stop, queue=False, **QUIET)
    for button, example in zip(examples, EXAMPLES, strict=True):
        button.click(_giver_of(example.text), None, widgets.prompt, queue=False, **QUIET)
    gr.on([widgets.refresh.click, tab.select], handlers.refresh, None, widgets.total_outputs, queue=False, **QUIET)
    page.load(handlers.open, None, widgets.outputs, queue=False, **QUIET)


def _giver_of(text: str) -> Any:
    async def give() -> str:
        return text

    return give


def _lay_out() -> tuple[ComparisonWidgets, list[gr.Button]]:
    with gr.Column(elem_classes="wb-speculation", min_width=0):
        parts, examples = _controls()
        with gr.Row(elem_classes="wb-columns", equal_height=True):
            parts["plain"] = _card("wb-plain-column")
            parts["drafted"] = _card("wb-drafted-column")
        parts["verdict"] = gr.HTML("", elem_id="wb-comparison-verdict")
        with gr.Row(elem_classes="wb-charts"):
            parts["by_position"] = _chart("wb-chart-positions", "wb-chart-accepted")
            parts["lengths"] = _chart("wb-chart-lengths", "wb-chart-accepted")
            parts["speedup"] = _chart("wb-chart-speedup", "wb-chart-speedup")
            parts["over_time"] = _chart("wb-chart-k", "wb-chart-drafted")
            parts["tokens"] = _chart("wb-chart-tokens", "wb-chart-two")
            parts["run_facts"] = _card("wb-run-facts")
            parts["totals"] = _card("wb-draft-totals")
            parts["all_over_time"] = _chart("wb-chart-all", "wb-chart-accepted")
        with gr.Column(elem_classes="wb-card wb-all-requests", min_width=0):
            parts |= _table()
        gr.HTML(f'<p class="wb-note" id="{PROOF_ID}">{localized(PROOF)}</p>', elem_id="wb-proof-note")
    return ComparisonWidgets(**parts), examples


def _controls() -> tuple[dict[str, Any], list[gr.Button]]:
    with gr.Column(elem_classes="wb-card wb-comparison-controls", min_width=0):
        prompt = gr.Textbox(
            EXAMPLES[0].text,
            label=localized("Prompt"),
            lines=1,
            max_lines=4,
            elem_id="wb-comparison-prompt",
            elem_classes="wb-field",
            min_width=0,
        )
        with gr.Row(elem_classes="wb-try"):
            gr.HTML(f'<span class="wb-sub">{localized("Try")}</span>', elem_classes="wb-try-label")
            examples = [
                gr.Button(localized(example.label), size="sm", elem_classes="wb-suggestion", min_width=0)
                for example in EXAMPLES
            ]
        with gr.Row(elem_classes="wb-comparison-row"):
            drafting = _drafting()
            stop = gr.Button(localized("Stop"), interactive=False, size="sm", elem_id="wb-comparison-stop", min_width=0)
            race = gr.Button(localized("Race"), size="sm", elem_id="wb-comparison-race", min_width=0)
            run = gr.Button(
                localized("Run in turn"), variant="primary", size="sm", elem_id="wb-comparison-run", min_width=0
            )
    return {"prompt": prompt, **drafting, "stop": stop, "race": race, "run": run}, examples


def _drafting() -> dict[str, Any]:
    return {
        "method": gr.Radio(
            [(localized(words), name) for name, words in METHOD_WORDS if name != "none"],
            value=DRAFTING.method,
            label=localized("Proposer"),
            elem_classes="wb-choice",
            elem_id="wb-comparison-method",
            min_width=0,
        ),
        "count": gr.Slider(
            1,
            MAX_SPECULATIVE_TOKENS,
            DRAFTING.num_speculative_tokens,
            step=1,
            label=localized("Max K"),
            elem_classes="wb-slider",
            elem_id="wb-comparison-k",
            min_width=0,
        ),
        "adaptive": gr.Checkbox(
            DRAFTING.speculative_adaptive,
            label=localized("Adaptive K"),
            elem_classes="wb-check",
            elem_id="wb-comparison-adaptive",
            min_width=0,
        ),
    }


def _card(elem_id: str) -> gr.HTML:
    with gr.Column(elem_classes="wb-card", min_width=0):
        return gr.HTML("", elem_id=elem_id)


def _chart(elem_id: str, css: str) -> Chart:
    """A card for a chart; `css` says what its marks mean, and so their colours."""
    with gr.Column(elem_classes=f"wb-card wb-chart {css}", elem_id=elem_id, min_width=0):
        head = gr.HTML("")
        plot = gr.Plot(None, show_label=False, container=False, visible=False)
    return Chart(head, plot)


def _table() -> dict[str, Any]:
    with gr.Row(elem_classes="wb-table-head"):
        gr.HTML(f"<h2>{localized('Requests that were drafted for')}</h2>")
        refresh = gr.Button(
            localized("Refresh"), size="sm", elem_id="wb-totals-refresh", elem_classes="wb-small", min_width=0
        )
    table = gr.Dataframe(
        None,
        interactive=False,
        visible=False,
        max_height=260,
        elem_id="wb-draft-table",
        show_label=False,
    )
    return {"table": table, "refresh": refresh}
