"""The arguments of `app.py`. Importing this costs nothing, so that `--help` answers at once."""

from __future__ import annotations

import argparse
from typing import Final

from workbench.config import DEFAULT_MODEL, KERNEL_BACKENDS, read_environment
from workbench.presets import DEFAULT_PRESET

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 7860

ENGINE_OPTIONS: Final[dict[str, str]] = {
    "block_size": "tokens per KV block: 8, 16 or 32",
    "num_blocks": "number of KV blocks",
    "kv_cache_bytes": "byte budget of the KV cache, from which the number of blocks follows",
    "max_num_batched_tokens": "token budget of one step, prefill and decode together",
    "max_num_seqs": "most requests that run in one step",
    "max_model_len": "longest context (prompt and output) in tokens",
    "num_threads": "threads of the CPU kernels",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the command line. HOST, PORT, PRESET, MODEL and WORKBENCH_TOKEN in the environment set defaults."""
    env = read_environment()
    parser = argparse.ArgumentParser(
        prog="app.py",
        description="Chat with a model in the browser and watch the engine work.",
        epilog="HOST, PORT, PRESET, MODEL and WORKBENCH_TOKEN may also be given in the environment; options win.",
    )
    parser.add_argument("--preset", default=env.preset or DEFAULT_PRESET, help="settings to start from (%(default)s)")
    parser.add_argument("--list-presets", action="store_true", help="list the presets and exit")
    parser.add_argument("--model", default=env.model, help=f"{DEFAULT_MODEL}, a GGUF file, a directory or a hub id")
    parser.add_argument("--replay", metavar="FILE", help="show a saved run instead of loading a model")
    parser.add_argument("--host", default=env.host or DEFAULT_HOST, help="address to listen on (%(default)s)")
    parser.add_argument("--port", default=env.port or str(DEFAULT_PORT), help="port, 0 for any free one (%(default)s)")
    parser.add_argument(
        "--token", default=env.token, help="what every visitor has to bring; needed where other machines reach us"
    )
    parser.add_argument("--show-all-text", action="store_true", help="decode blocks for visitors from elsewhere, too")
    engine = parser.add_argument_group("engine", "each overrides the preset")
    for name, words in ENGINE_OPTIONS.items():
        engine.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=words)
    engine.add_argument("--kernel-backend", choices=KERNEL_BACKENDS, help="kernels that compute")
    return parser
