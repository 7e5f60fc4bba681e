"""The page: header, sidebar, tabs, status line. `build_ui` returns it, `page_options` goes to the mount."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gradio as gr
from starlette.middleware import Middleware

from workbench.engine.service import EngineService
from workbench.presets import Preset
from workbench.ui.components.assets import ui_assets
from workbench.ui.components.guide import guide
from workbench.ui.components.header_strip import header_strip, status_line
from workbench.ui.components.page_tools import page_tools
from workbench.ui.language_first import LanguageFirst
from workbench.ui.listeners import Listeners, ListenersCounted
from workbench.ui.localized import gradio_texts, localized
from workbench.ui.pages.blocks import build_blocks_page
from workbench.ui.pages.chat import build_chat_page, build_replay_chat_page
from workbench.ui.pages.speculation import build_speculation_page
from workbench.ui.pages.timeline import build_timeline_page
from workbench.ui.preset_store import PresetStore
from workbench.ui.replay_sidebar import build_replay_sidebar
from workbench.ui.sidebar import build_sidebar
from workbench.ui.theme import STYLESHEET, build_theme

TITLE: Final = "Inference Workbench"
_PAGE_SCRIPT: Final = Path(__file__).with_name("page.js")


def build_ui(
    service: EngineService,
    presets: Mapping[str, Preset],
    selected_preset: str,
    *,
    show_token_text: bool = True,
    preset_directory: Path | None = None,
    is_replay: bool = False,
    listeners: Listeners | None = None,
) -> gr.Blocks:
    """Build the page over an engine service. The engine may still be loading.

    Args:
        service: the engine's door; everything shown comes from it.
        presets: by name, for the sidebar.
        selected_preset: name of the preset that the engine was started with.
        show_token_text: whether the block map may show decoded tokens, of whomever they are.
        preset_directory: where visitors may save presets; None where strangers reach the page.
        is_replay: whether a saved run stands in the engine's place. Then nothing that asks an engine can be pressed,
            and the page opens on the blocks.
        listeners: the one that `page_options` takes. Without it, answers of a tab that never listened go on.
    """
    with gr.Blocks(title=TITLE, fill_width=True, analytics_enabled=False) as page:
        if is_replay:
            build_replay_sidebar(service)
        else:
            sidebar = build_sidebar(page, service, PresetStore(presets, preset_directory), selected_preset)
        header_strip(None if is_replay else service)
        guide(can_act=not is_replay)
        with gr.Column(elem_classes="wb-tabs-area", min_width=0):
            page_tools()
            with gr.Tabs(elem_id="wb-tabs", selected="blocks" if is_replay else "chat"):
                with gr.Tab(localized("Chat"), id="chat"):
                    if is_replay:
                        build_replay_chat_page()
                    else:
                        build_chat_page(page, service, sidebar, listeners)
                with gr.Tab(localized("Blocks"), id="blocks"):
                    build_blocks_page(service, show_token_text=show_token_text)
                with gr.Tab(localized("Timeline"), id="timeline"):
                    build_timeline_page()
                if not is_replay:
                    with gr.Tab(localized("Speculation"), id="speculation") as tab:
                        build_speculation_page(page, tab, service, sidebar, listeners)
        status_line()
    return page


def page_options(listeners: Listeners | None = None) -> dict[str, Any]:
    """Return the arguments of `gr.mount_gradio_app` that belong to the look and privacy of the page."""
    component_css, head = ui_assets()
    middleware = [Middleware(LanguageFirst)]
    if listeners is not None:
        middleware.append(Middleware(ListenersCounted, listeners))
    return {
        "theme": build_theme(),
        "css": f"{component_css}\n{STYLESHEET.read_text(encoding='utf-8')}",
        "head": head,
        "js": _PAGE_SCRIPT.read_text(encoding="utf-8"),
        "footer_links": [],
        "run_history": False,
        "show_error": True,
        "ssr_mode": False,
        "mcp_server": False,
        "enable_monitoring": False,
        "i18n": gradio_texts(),
        "app_kwargs": {"middleware": middleware},
    }
