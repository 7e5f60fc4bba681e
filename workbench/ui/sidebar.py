"""The sidebar: preset, the visitor's own sampling, the engine's settings, Apply."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import gradio as gr

from workbench.config import BLOCK_SIZES, LIVE_FIELDS
from workbench.engine.service import EngineService
from workbench.errors import WorkbenchError
from workbench.presets import Preset
from workbench.sampling_params import SamplingParams
from workbench.ui.settings import (
    ENGINE_FIELDS,
    EngineChanges,
    apply_changes,
    apply_note,
    current_engine_values,
    engine_changes,
)

BRAND: Final = (
    '<div class="wb-brand"><svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true"><g fill="currentColor">'
    + "".join(
        f'<rect x="{1 + 5.8 * column:g}" y="{1 + 5.8 * row:g}" width="4.5" height="4.5" opacity="{opacity}"/>'
        for row, line in enumerate(((1, 0.35, 1), (0.35, 1, 0.35), (1, 0.35, 0.18)))
        for column, opacity in enumerate(line)
    )
    + "</g></svg><span>Inference Workbench</span></div>"
)


@dataclass(frozen=True)
class Sidebar:
    """The controls that other parts of the page read."""

    sampling: list[gr.components.Component]
    """Temperature, top-p, top-k, seed, max tokens, stop: the arguments of `settings.sampling_params`."""
    system_prompt: gr.Textbox


def build_sidebar(service: EngineService, presets: Mapping[str, Preset], selected: str) -> Sidebar:
    """Lay out the sidebar and wire its events. Call inside `gr.Blocks`."""
    with gr.Sidebar(width=272, elem_id="wb-sidebar"):
        gr.HTML(BRAND)
        preset = gr.Dropdown(
            [(item.title, name) for name, item in presets.items()],
            value=selected,
            label="Preset",
            elem_id="wb-preset",
            elem_classes="wb-field",
        )
        description = gr.HTML(_note(presets[selected].description), elem_classes="wb-preset-note")
        sampling, system_prompt = _sampling_section(presets[selected].sampling)
        engine = _engine_section(service)
        with gr.Column(elem_classes="wb-apply"):
            note = gr.HTML("", elem_id="wb-apply-note")
            apply = gr.Button("Apply", interactive=False, elem_id="wb-apply")
    _wire(service, presets, preset, description, sampling, engine, apply, note)
    return Sidebar(sampling, system_prompt)


def _sampling_section(params: SamplingParams) -> tuple[list[gr.components.Component], gr.Textbox]:
    with gr.Accordion("Sampling", open=True, elem_classes="wb-section wb-yours"), gr.Row(elem_classes="wb-form"):
        controls: list[gr.components.Component] = [
            gr.Slider(0, 2, params.temperature, step=0.05, label="Temperature", elem_classes="wb-slider", min_width=0),
            gr.Slider(0.05, 1, params.top_p, step=0.05, label="Top-p", elem_classes="wb-slider", min_width=0),
            gr.Slider(0, 200, max(params.top_k, 0), step=1, label="Top-k", elem_classes="wb-slider", min_width=0),
            gr.Textbox(
                "" if params.seed is None else str(params.seed),
                label="Seed",
                placeholder="random",
                elem_classes="wb-field wb-mono",
                elem_id="wb-seed",
                min_width=0,
            ),
            gr.Number(
                params.max_tokens,
                label="Max tokens",
                placeholder="as many as fit",
                precision=0,
                elem_classes="wb-field wb-mono",
                elem_id="wb-max-tokens",
                min_width=0,
            ),
            gr.Textbox(
                "\n".join(params.stop_texts),
                label="Stop",
                placeholder="one per line",
                lines=1,
                max_lines=4,
                elem_classes="wb-field wb-mono",
                elem_id="wb-stop-texts",
                min_width=0,
            ),
        ]
        system_prompt = gr.Textbox(
            "",
            label="System prompt",
            placeholder="none",
            lines=2,
            max_lines=6,
            elem_classes="wb-field wb-full",
            elem_id="wb-system-prompt",
        )
    return controls, system_prompt


def _engine_section(service: EngineService) -> list[Any]:
    current = current_engine_values(service)
    with gr.Accordion("Engine", open=True, elem_classes="wb-section wb-everyone"), gr.Row(elem_classes="wb-form"):
        return [
            gr.Radio(
                [(str(size), size) for size in BLOCK_SIZES],
                value=current["block_size"],
                label="Block size",
                elem_classes=["wb-choice", "wb-full", _tag("block_size")],
                elem_id="wb-block-size",
            ),
            *(
                gr.Number(
                    current[name],
                    label=label,
                    precision=0,
                    elem_classes=["wb-field", "wb-mono", _tag(name)],
                    elem_id=f"wb-{name.replace('_', '-')}",
                    min_width=0,
                )
                for name, label in (
                    ("num_blocks", "Blocks"),
                    ("max_num_batched_tokens", "Token budget"),
                    ("max_num_seqs", "Max sequences"),
                )
            ),
        ]


def _tag(name: str) -> str:
    """The class that draws "live" or "reload" beside a label."""
    return "wb-live" if name in LIVE_FIELDS else "wb-reload"


def _note(text: str, *, is_error: bool = False) -> str:
    css = "wb-note-error" if is_error else "wb-note"
    return f'<p class="{css}"{" role=alert" if is_error else ""}>{html.escape(text)}</p>' if text else ""


def _wire(
    service: EngineService,
    presets: Mapping[str, Preset],
    preset: gr.Dropdown,
    description: gr.HTML,
    sampling: list[gr.components.Component],
    engine: list[Any],
    apply: gr.Button,
    note: gr.HTML,
) -> None:
    async def choose_preset(name: str) -> list[Any]:
        item = presets[name]
        params, values = item.sampling, item.engine_config()
        seed = "" if params.seed is None else str(params.seed)
        own = [params.temperature, params.top_p, max(params.top_k, 0), seed, params.max_tokens]
        return [
            _note(item.description),
            *own,
            "\n".join(params.stop_texts),
            *(gr.skip() if getattr(values, field) is None else getattr(values, field) for field in ENGINE_FIELDS),
        ]

    async def count_changes(*wanted: float | None) -> tuple[Any, str]:
        changes = engine_changes(service, *wanted)
        return gr.Button(changes.button_label, interactive=bool(changes.values)), _note(apply_note(service, changes))

    async def apply_now(*wanted: float | None) -> Any:
        changes = engine_changes(service, *wanted)
        word = "Reloading …" if changes.needs_reload else "Applying …"
        yield gr.Button(word, interactive=False), _note(apply_note(service, changes))
        try:
            await asyncio.to_thread(apply_changes, service, changes)
        except WorkbenchError as error:
            yield gr.Button(changes.button_label, interactive=True), _note(str(error), is_error=True)
            return
        yield gr.Button(EngineChanges({}).button_label, interactive=False), _note("Applied.")

    async def show_current() -> list[Any]:
        """Fill in what is in force when the page opens: another visitor may have changed it."""
        current = current_engine_values(service)
        return [*(current[name] for name in ENGINE_FIELDS), EngineChanges({}).button_label]

    quiet: dict[str, Any] = {
        "queue": False,
        "show_progress": "hidden",
        "api_visibility": "private",
        "concurrency_limit": None,
    }
    preset.input(choose_preset, preset, [description, *sampling, *engine], **quiet)
    gr.on([control.change for control in engine], count_changes, engine, [apply, note], **quiet)
    apply.click(apply_now, engine, [apply, note], **{**quiet, "queue": True})
    gr.on(None, show_current, None, [*engine, apply], **quiet)
