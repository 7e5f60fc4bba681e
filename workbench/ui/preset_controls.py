"""The part of the sidebar that saves the settings shown as a preset."""

from __future__ import annotations

from typing import Any

import gradio as gr

from workbench.engine.service import EngineService
from workbench.errors import WorkbenchError
from workbench.ui.localized import localized, texts_for
from workbench.ui.notes import note
from workbench.ui.preset_store import PresetStore, is_local
from workbench.ui.quiet import QUIET
from workbench.ui.sampling_form import sampling_params, speculation_settings
from workbench.ui.settings import ENGINE_FIELDS, typed_values


def build_preset_saver(
    service: EngineService,
    store: PresetStore,
    preset: gr.Dropdown,
    description: gr.HTML,
    sampling: list[gr.components.Component],
    engine: list[Any],
) -> None:
    """Lay out and wire the accordion. Build it only where visitors may write files."""
    with (
        gr.Accordion(localized("Save as preset"), open=False, elem_classes="wb-section wb-saver"),
        gr.Row(elem_classes="wb-form"),
    ):
        name = _field("Name", "letters, digits, dashes", "wb-preset-name", "wb-mono")
        title = _field("Title", "as the list shows it", "wb-preset-title")
        about = _field("Description", "what it is for", "wb-preset-about", "wb-full")
        with gr.Column(elem_classes="wb-full", min_width=0):
            save = gr.Button(localized("Save preset"), size="sm", elem_id="wb-preset-save")
            said = gr.HTML("", elem_id="wb-preset-said")

    async def save_preset(
        request: gr.Request, base: str, new_name: str, new_title: str, new_about: str, *values: Any
    ) -> list[Any]:
        say = texts_for(request)
        wanted, own = values[: len(ENGINE_FIELDS)], values[len(ENGINE_FIELDS) :]
        if not is_local(request.client.host if request.client else None):
            return [gr.skip(), gr.skip(), note(say("Presets can be saved from this machine only."), is_error=True)]
        try:
            params = sampling_params(own, lambda: service.tokenizer)
            settings = engine_settings(store[base].engine, wanted)
            drafting = speculation_settings(own)
            is_old = store.save(new_name.strip(), new_title, new_about, settings, params, drafting)
        except WorkbenchError as error:
            return [gr.skip(), gr.skip(), note(str(error), is_error=True)]
        item = store[new_name.strip()]
        path = f"presets/{item.name}.toml"
        words = say("Replaced {path}.", path=path) if is_old else say("Saved as {path}.", path=path)
        return [
            gr.Dropdown(choices=localized_choices(store), value=item.name),
            note(localized(item.description)),
            note(words),
        ]

    save.click(
        save_preset,
        [preset, name, title, about, *engine, *sampling],
        [preset, description, said],
        queue=False,
        **QUIET,
    )


def localized_choices(store: PresetStore) -> list[tuple[Any, str]]:
    """Return the presets for a list: our own have their titles in every language."""
    return [(localized(title), name) for title, name in store.choices]


def engine_settings(base: Any, wanted: Any) -> dict[str, Any]:
    """Return a preset's engine settings with those of the sidebar on top; a field left empty keeps its value."""
    shown = typed_values(wanted)
    settings = dict(base)
    if "num_blocks" in shown:  # both size the pool
        settings.pop("kv_cache_bytes", None)
    return settings | shown


def _field(label: str, placeholder: str, elem_id: str, css: str = "") -> gr.Textbox:
    return gr.Textbox(
        "",
        label=localized(label),
        placeholder=localized(placeholder),
        lines=1,
        max_lines=1,
        elem_id=elem_id,
        elem_classes=["wb-field", *css.split()],
        min_width=0,
    )
