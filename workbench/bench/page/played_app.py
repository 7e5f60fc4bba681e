"""`python -m workbench.bench.page.played_app PRESET SECONDS [MODEL]`: the page over a recorded run.

Records an engine, stops it, and serves what it did to whoever sends a message.

Prints the page's address as `app.py` does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import cast

from workbench.config import prepare_process


def main(arguments: Sequence[str]) -> int:
    """Serve until told to stop. Returns the exit code."""
    prepare_process()
    from app import serve
    from workbench.bench.page.recording import PlayedService, record
    from workbench.bench.throughput import start_service
    from workbench.engine.service import EngineService
    from workbench.presets import load_presets, select_preset
    from workbench.server.listener import listen

    preset_name, seconds, *model = arguments
    presets = load_presets()
    preset = select_preset(presets, preset_name)
    engine = start_service(preset.engine_config(**({"model": model[0]} if model else {})))
    try:
        recording = record(engine, float(seconds))
    finally:
        engine.shutdown()
    service = cast(EngineService, PlayedService(recording))
    with listen("127.0.0.1", "0") as listener:
        return serve(service, presets, preset, listener, show=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
