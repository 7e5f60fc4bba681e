"""The sidebar: preset, the visitor's own sampling and drafting, the engine's settings, Apply."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import gradio as gr

from workbench.config import BLOCK_SIZES, LIVE_FIELDS
from workbench.engine.service import EngineService
from workbench.errors import WorkbenchError
from workbench.ui.localized import localized, texts_for
from workbench.ui.notes import note
from workbench.ui.preset_controls import build_preset_saver, localized_choices
from workbench.ui.preset_store import PresetStore
from workbench.ui.quiet import QUIET
from workbench.ui.sampling_controls import build_sampling_controls
from workbench.ui.sampling_form import FIELDS, FORM_VERSION, form_values, kept_form
from workbench.ui.settings import (
    ENGINE_FIELDS,
    EngineChanges,
    apply_changes,
    apply_note,
    current_engine_values,
    engine_changes,
)

POLICY_WORDS: Final = (
    ("fcfs", "Arrival"),
    ("priority", "Priority"),
    ("sjf", "Shortest job"),
)
ADMISSION_WORDS: Final = (("strict", "Nobody"), ("first_fit", "First fit"), ("best_fit", "Best fit"))
"""Who may start when the first in the queue does not fit."""
PREEMPTION_WORDS: Final = (("recompute", "Recompute"), ("swap", "Swap"), ("auto", "Auto"))
LAYOUT_WORDS: Final = (("paged", "Paged"), ("contiguous", "Contiguous"))
PLACEMENT_WORDS: Final = (("first_fit", "First fit"), ("best_fit", "Best fit"))
PREEMPTION_NOTE: Final = (
    "Who has to make room is computed again later, or kept in host memory (swap). Auto takes what is estimated to "
    "cost less."
)
LAYOUT_NOTE: Final = (
    "Contiguous reserves one run of blocks for all that a request may become, as before paging: without prefix cache "
    "and beam search. Placement: the first run that is long enough, or the tightest."
)
STORAGE_KEY: Final = "wb-sampling"
STORAGE_SECRET: Final = "inference-workbench"  # nothing is secret; a random one would be lost at a restart
KEEP_FORM: Final = f"(kept, ...values) => [window.wbFormShown ? {{ version: {FORM_VERSION}, values }} : kept]"
FORM_SHOWN: Final = "() => { window.wbFormShown = true; }"
"""Before this, the form holds what the server gave, not what the visitor set: that must not be kept."""

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
    """In the order of `sampling_form.FIELDS`."""
    system_prompt: gr.Textbox


def build_sidebar(page: gr.Blocks, service: EngineService, store: PresetStore, selected: str) -> Sidebar:
    """Lay out the sidebar and wire its events. Call inside `page`."""
    with gr.Sidebar(width=272, elem_id="wb-sidebar"):
        gr.HTML(BRAND)
        preset = gr.Dropdown(
            localized_choices(store),
            value=selected,
            label=localized("Preset"),
            elem_id="wb-preset",
            elem_classes="wb-field",
        )
        description = gr.HTML(note(localized(store[selected].description)), elem_classes="wb-preset-note")
        sampling, system_prompt = build_sampling_controls(store[selected])
        engine = _engine_section(service)
        if store.can_save:
            build_preset_saver(service, store, preset, description, sampling, engine)
        with gr.Column(elem_classes="wb-apply"):
            apply_note_line = gr.HTML("", elem_id="wb-apply-note")
            apply = gr.Button(localized("Apply"), interactive=False, elem_id="wb-apply")
    kept = gr.BrowserState(None, storage_key=STORAGE_KEY, secret=STORAGE_SECRET)
    controls = _Controls(preset, description, sampling, system_prompt, engine, apply, apply_note_line, kept)
    _wire_sampling(store, controls)
    _wire_engine(service, controls)
    _wire_page(page, service, store, controls)
    return Sidebar(sampling, system_prompt)


@dataclass(frozen=True)
class _Controls:
    preset: gr.Dropdown
    description: gr.HTML
    sampling: list[gr.components.Component]
    system_prompt: gr.Textbox
    engine: list[Any]
    apply: gr.Button
    note: gr.HTML
    kept: gr.BrowserState
    """The visitor's settings of sampling and drafting, and system prompt, in the browser."""


def _engine_section(service: EngineService) -> list[Any]:
    """The controls in the order of `ENGINE_FIELDS`."""
    current = current_engine_values(service)
    with (
        gr.Accordion(localized("Engine"), open=True, elem_classes="wb-section wb-everyone"),
        gr.Row(elem_classes="wb-form"),
    ):
        usual = [
            gr.Radio(
                [(str(size), size) for size in BLOCK_SIZES],
                value=current["block_size"],
                label=localized("Block size"),
                elem_classes=["wb-choice", "wb-full", _tag("block_size")],
                elem_id="wb-block-size",
            ),
            *(
                _number(current, name, label)
                for name, label in (
                    ("num_blocks", "Blocks"),
                    ("max_num_batched_tokens", "Token budget"),
                    ("max_num_seqs", "Max sequences"),
                )
            ),
            gr.Checkbox(
                current["enable_prefix_caching"],
                label=localized("Prefix cache"),
                elem_classes=["wb-check", "wb-full", _tag("enable_prefix_caching")],
                elem_id="wb-enable-prefix-caching",
            ),
            _dropdown(current, "scheduling_policy", "Policy", POLICY_WORDS),
            _dropdown(current, "admission_policy", "Past the head", ADMISSION_WORDS),
            _dropdown(current, "preemption_mode", "Preemption", PREEMPTION_WORDS),
            _number(current, "swap_space", "Swap GiB", precision=None),
        ]
        gr.HTML(note(localized(PREEMPTION_NOTE)), elem_classes="wb-form-note")
        layout = [
            _dropdown(current, "kv_layout", "Layout", LAYOUT_WORDS),
            _dropdown(current, "kv_placement", "Placement", PLACEMENT_WORDS),
        ]
        gr.HTML(note(localized(LAYOUT_NOTE)), elem_classes="wb-form-note")
    return [*usual, *layout]


def _number(current: dict[str, Any], name: str, label: str, precision: int | None = 0) -> gr.Number:
    return gr.Number(
        current[name],
        label=localized(label),
        precision=precision,
        elem_classes=["wb-field", "wb-mono", _tag(name)],
        elem_id=f"wb-{name.replace('_', '-')}",
        min_width=0,
    )


def _dropdown(current: dict[str, Any], name: str, label: str, choices: tuple[tuple[str, str], ...]) -> gr.Dropdown:
    return gr.Dropdown(
        [(localized(words), value) for value, words in choices],
        value=current[name],
        label=localized(label),
        elem_classes=["wb-field", _tag(name)],
        elem_id=f"wb-{name.replace('_', '-')}",
        min_width=0,
    )


def _tag(name: str) -> str:
    """The class that draws "live" or "reload" beside a label."""
    return "wb-live" if name in LIVE_FIELDS else "wb-reload"


_AT_ONCE: Final[dict[str, Any]] = {
    **QUIET,
    "queue": False,
    "concurrency_limit": None,
}


def _wire_sampling(store: PresetStore, controls: _Controls) -> None:
    """A preset fills in the form; what the visitor sets is kept in the browser."""

    async def choose_preset(name: str) -> list[Any]:
        item = store[name]
        values = item.engine_config()
        return [
            note(localized(item.description)),
            *form_values(item.sampling, item.speculation),
            *(gr.skip() if getattr(values, field) is None else getattr(values, field) for field in ENGINE_FIELDS),
        ]

    own = [*controls.sampling, controls.system_prompt]

    async def choose_again(event: gr.SelectData) -> list[Any]:
        return await choose_preset(event.value)

    # Not `input`, which also comes when the list is only left: Tab would undo what the visitor had set. `change`
    # hears of the keyboard, too; `select` of a click on the preset that is chosen already, which brings it back.
    filled = [controls.description, *controls.sampling, *controls.engine]
    controls.preset.change(choose_preset, controls.preset, filled, **_AT_ONCE)
    controls.preset.select(choose_again, None, filled, **_AT_ONCE)
    gr.on(  # by the browser alone, each time: nothing is asked of the server
        [control.change for control in own],  # type: ignore[attr-defined]
        None,
        [controls.kept, *own],
        controls.kept,
        js=KEEP_FORM,
        trigger_mode="multiple",
        **_AT_ONCE,
    )


def _wire_engine(service: EngineService, controls: _Controls) -> None:
    """Count the changes, and apply them."""

    async def count_changes(request: gr.Request, *wanted: float | None) -> tuple[Any, str]:
        say, changes = texts_for(request), engine_changes(service, *wanted)
        button = gr.Button(changes.button_label(say), interactive=bool(changes.values))
        return button, note(apply_note(service, changes, say))

    async def apply_now(request: gr.Request, *wanted: float | None) -> Any:
        say, changes = texts_for(request), engine_changes(service, *wanted)
        word = say("Reloading …") if changes.needs_reload else say("Applying …")
        yield gr.Button(word, interactive=False), note(apply_note(service, changes, say))
        try:
            await asyncio.to_thread(apply_changes, service, changes)
        except WorkbenchError as error:
            yield gr.Button(changes.button_label(say), interactive=True), note(str(error), is_error=True)
            return
        yield gr.Button(EngineChanges({}).button_label(say), interactive=False), note(say("Applied."))

    engine = controls.engine
    gr.on([control.change for control in engine], count_changes, engine, [controls.apply, controls.note], **_AT_ONCE)
    controls.apply.click(apply_now, engine, [controls.apply, controls.note], **{**_AT_ONCE, "queue": True})


def _wire_page(page: gr.Blocks, service: EngineService, store: PresetStore, controls: _Controls) -> None:
    """Fill in the form when the page opens."""

    async def show_current(request: gr.Request, kept: Any) -> list[Any]:
        """Fill in what is in force, which another visitor may have changed, and what this one had set."""
        current = current_engine_values(service)
        return [
            *(kept_form(kept) or [gr.skip()] * (len(FIELDS) + 1)),
            gr.Dropdown(choices=localized_choices(store)),
            *(current[name] for name in ENGINE_FIELDS),
            EngineChanges({}).button_label(texts_for(request)),
        ]

    own = [*controls.sampling, controls.system_prompt]
    # Not `gr.on(None, …)`, which also runs whenever an input changes: it would undo what is being typed.
    shown = page.load(
        show_current, controls.kept, [*own, controls.preset, *controls.engine, controls.apply], **_AT_ONCE
    )
    shown.then(None, js=FORM_SHOWN, **_AT_ONCE)
