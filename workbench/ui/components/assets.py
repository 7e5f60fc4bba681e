"""CSS and JavaScript of our canvas components, read from the files beside this one.

Everything is inlined into the page: no request leaves for it. The scripts share one namespace,
`window.wb`, and are given in the order in which they need each other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from workbench.ui.texts import TABLES

HERE: Final = Path(__file__).parent

STYLES: Final = ("base.css", "header.css", "block_map.css", "timeline.css", "speculation.css", "guide.css")
SCRIPTS: Final = (
    "language.js",
    "address.js",
    "frames.js",
    "snapshot.js",
    "store.js",
    "feed.js",
    "saved_run.js",
    "palette.js",
    "format.js",
    "dom.js",
    "geometry.js",
    "cells.js",
    "overview.js",
    "lens.js",
    "map_canvas.js",
    "strip.js",
    "panels.js",
    "totals.js",
    "queue.js",
    "traffic.js",
    "recorded.js",
    "travel.js",
    "run_tools.js",
    "save_map.js",
    "map_tip.js",
    "block_map.js",
    "compact_map.js",
    "timeline_words.js",
    "timeline_history.js",
    "timeline_axis.js",
    "timeline_reader.js",
    "timeline_tracks.js",
    "timeline_rows.js",
    "timeline_tip.js",
    "timeline_hands.js",
    "timeline_controls.js",
    "inspector.js",
    "timeline.js",
    "chat_tools.js",
    "token_tip.js",
    "guide.js",
    "page_tools.js",
    "speculation_note.js",
    "header.js",
)

MOUNT: Final = """
(function start() {
  if (window.wb && window.wb.mount) window.wb.mount("NAME", element, { trigger, props, watch, server: SERVER });
  else setTimeout(start, 20);
})();
"""


def ui_assets() -> tuple[str, str]:
    """Return the CSS text and the HTML for the page's head that carries the scripts."""
    css = "\n".join((HERE / name).read_text(encoding="utf-8") for name in STYLES)
    js = "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    tables = json.dumps(dict(TABLES), ensure_ascii=False).replace("</", "<\\/")
    return css, f"<script>\nwindow.wb = {{ tables: {tables} }};\n{js}\n</script>"


def template(name: str) -> str:
    """Return the static HTML of a component. It holds no placeholder: a changed template would wipe the canvas."""
    return (HERE / f"{name}.html").read_text(encoding="utf-8")


def mount_script(name: str, *, has_server: bool = False) -> str:
    """Return the `js_on_load` of a component that `wb.define(name, ...)` registered.

    Args:
        name: as registered in JavaScript.
        has_server: whether the component has server functions; Gradio defines `server` only then.
    """
    return MOUNT.replace("NAME", name).replace("SERVER", "server" if has_server else "null")
