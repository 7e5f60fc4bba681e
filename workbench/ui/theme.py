"""The look of the page: Gradio's theme variables and the stylesheet beside this file.

Both faces of IBM Plex ship inside the gradio wheel, so nothing is fetched from another host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import gradio as gr

STYLESHEET: Final = Path(__file__).with_name("theme.css")

_CHINESE: Final = ("Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei")

_COLOURS: Final[dict[str, tuple[str, str]]] = {
    "body_background_fill": ("#f1f3f6", "#0c0f13"),
    "background_fill_primary": ("#ffffff", "#12161b"),
    "background_fill_secondary": ("#f7f8fa", "#0f1317"),
    "panel_background_fill": ("#f7f8fa", "#0f1317"),
    "panel_border_color": ("#dce1e8", "#222932"),
    "body_text_color": ("#18202a", "#dce2e9"),
    "body_text_color_subdued": ("#566270", "#919ca9"),
    "block_background_fill": ("#ffffff", "#12161b"),
    "block_border_color": ("#dce1e8", "#222932"),
    "block_label_background_fill": ("#ffffff", "#12161b"),
    "block_label_border_color": ("#dce1e8", "#222932"),
    "block_label_text_color": ("#566270", "#919ca9"),
    "block_title_text_color": ("#18202a", "#dce2e9"),
    "block_info_text_color": ("#566270", "#919ca9"),
    "border_color_primary": ("#ccd3dc", "#2b343f"),
    "border_color_accent": ("#2b5c94", "#8fb3e0"),
    "border_color_accent_subdued": ("#c3cbd5", "#303a46"),
    "color_accent_soft": ("#e4edf7", "#1b2735"),
    "link_text_color": ("#2b5c94", "#9dbde6"),
    "link_text_color_active": ("#2b5c94", "#9dbde6"),
    "link_text_color_hover": ("#1d4676", "#cfe0f5"),
    "link_text_color_visited": ("#2b5c94", "#9dbde6"),
    "code_background_fill": ("#f1f3f6", "#0c0f13"),
    "slider_color": ("#2b5c94", "#8fb3e0"),
    "loader_color": ("#2b5c94", "#8fb3e0"),
    "accordion_text_color": ("#18202a", "#dce2e9"),
    "input_background_fill": ("#ffffff", "#0c0f13"),
    "input_background_fill_focus": ("#ffffff", "#0c0f13"),
    "input_background_fill_hover": ("#ffffff", "#0c0f13"),
    "input_border_color": ("#c3cbd5", "#303a46"),
    "input_border_color_hover": ("#9aa6b4", "#465260"),
    "input_border_color_focus": ("#2b5c94", "#8fb3e0"),
    "input_placeholder_color": ("#66717e", "#7f8a97"),
    "button_primary_background_fill": ("#2b5c94", "#8fb3e0"),
    "button_primary_background_fill_hover": ("#244e7e", "#a5c2e8"),
    "button_primary_border_color": ("#2b5c94", "#8fb3e0"),
    "button_primary_border_color_hover": ("#244e7e", "#a5c2e8"),
    "button_primary_text_color": ("#ffffff", "#0b1118"),
    "button_primary_text_color_hover": ("#ffffff", "#0b1118"),
    "button_secondary_background_fill": ("#f7f8fa", "#181d24"),
    "button_secondary_background_fill_hover": ("#eceff3", "#1f262f"),
    "button_secondary_border_color": ("#c3cbd5", "#303a46"),
    "button_secondary_border_color_hover": ("#9aa6b4", "#465260"),
    "button_secondary_text_color": ("#18202a", "#dce2e9"),
    "button_secondary_text_color_hover": ("#18202a", "#dce2e9"),
    "checkbox_background_color": ("#ffffff", "#0c0f13"),
    "checkbox_border_color": ("#c3cbd5", "#303a46"),
    "checkbox_background_color_selected": ("#2b5c94", "#8fb3e0"),
    "checkbox_border_color_selected": ("#2b5c94", "#8fb3e0"),
    "checkbox_label_background_fill": ("#ffffff", "#0c0f13"),
    "checkbox_label_background_fill_hover": ("#f1f3f6", "#181d24"),
    "checkbox_label_background_fill_selected": ("#e4edf7", "#1f2d3f"),
    "checkbox_label_border_color": ("#c3cbd5", "#303a46"),
    "checkbox_label_border_color_hover": ("#c3cbd5", "#303a46"),
    "checkbox_label_border_color_selected": ("#c3cbd5", "#303a46"),
    "checkbox_label_text_color": ("#566270", "#919ca9"),
    "checkbox_label_text_color_selected": ("#1d4676", "#cfe0f5"),
    "table_border_color": ("#e3e7ed", "#222932"),
    "table_even_background_fill": ("#ffffff", "#12161b"),
    "table_odd_background_fill": ("#fafbfc", "#151a20"),
    "table_text_color": ("#18202a", "#dce2e9"),
    "error_background_fill": ("#fdf3f2", "#231516"),
    "error_border_color": ("#b3322a", "#ff8078"),
    "error_text_color": ("#b3322a", "#ff8078"),
    "error_icon_color": ("#b3322a", "#ff8078"),
    "stat_background_fill": ("#2b5c94", "#8fb3e0"),
}
"""Variable → its value in light and in dark."""

_MEASURES: Final[dict[str, str]] = {
    "body_text_size": "13px",
    "block_border_width": "1px",
    "block_label_border_width": "0px",
    "block_label_text_size": "11px",
    "block_label_text_weight": "400",
    "block_info_text_size": "11px",
    "block_padding": "12px",
    "block_radius": "4px",
    "block_shadow": "none",
    "block_title_text_size": "11px",
    "block_title_text_weight": "400",
    "block_title_padding": "0",
    "button_border_width": "1px",
    "button_transition": "none",
    "chatbot_text_size": "14px",
    "checkbox_border_radius": "2px",
    "container_radius": "4px",
    "embed_radius": "4px",
    "form_gap_width": "0px",
    "input_padding": "4px 8px",
    "input_radius": "3px",
    "input_shadow": "none",
    "input_shadow_focus": "none",
    "input_text_size": "12px",
    "layout_gap": "12px",
    "prose_text_size": "13px",
    "section_header_text_size": "12px",
    "section_header_text_weight": "600",
    "shadow_drop": "none",
    "shadow_drop_lg": "0 4px 14px rgba(0,0,0,.28)",
    "shadow_inset": "none",
    "shadow_spread": "0px",
    **{
        f"button_{size}_{key}": value
        for size in ("small", "medium", "large")
        for key, value in {"radius": "3px", "text_size": "12px", "text_weight": "400", "padding": "0 10px"}.items()
    },
}


def build_theme() -> gr.themes.Base:
    """Return the theme: neutral by default, colour only where it carries meaning, light and dark."""
    theme = gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        text_size=gr.themes.Size("11px", "11px", "12px", "13px", "15px", "15px", "18px", "wb_text"),
        spacing_size=gr.themes.Size("2px", "2px", "4px", "6px", "8px", "12px", "16px", "wb_spacing"),
        radius_size=gr.themes.Size("2px", "3px", "3px", "4px", "4px", "4px", "4px", "wb_radius"),
        font=[gr.themes.LocalFont("IBM Plex Sans", (400, 600)), *_CHINESE, "system-ui", "sans-serif"],
        font_mono=[gr.themes.LocalFont("IBM Plex Mono", (400, 600)), *_CHINESE, "ui-monospace", "monospace"],
    )
    colours = {f"{name}{suffix}": pair[i] for name, pair in _COLOURS.items() for i, suffix in enumerate(("", "_dark"))}
    accent = {"color_accent": "#2b5c94"}  # has no dark twin in Gradio; the stylesheet gives it one
    return theme.set(**colours, **_MEASURES, **accent)
