"""llama.cpp's server inside the process (xllamacpp), from the same GGUF file, quantized as it is stored.

Arguments: path of the GGUF file, number of threads, number of slots, longest context of a slot in tokens.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from workbench.bench.peer_workers.protocol import Deliveries, Run, Stopwatch, serve


def run_requests(server: Any, prompts: list[list[int]], max_tokens: list[int]) -> Deliveries:
    """Submit all prompts, a waiting thread for each, and note tokens as they stream."""
    watch = Stopwatch(len(prompts))

    def complete(index: int) -> None:
        seen = 0

        def on_chunk(chunk: dict[str, Any]) -> bool:
            nonlocal seen
            if "error" in chunk:
                raise RuntimeError(f"llama.cpp refused request {index}: {chunk['error']}")
            # A chunk waits for whole characters, so it may bring several tokens: its count says how many.
            count = chunk["timings"]["predicted_n"]
            if count > seen:
                watch.note(index, count - seen)
                seen = count
            return False

        order = {
            "prompt": prompts[index],
            "n_predict": max_tokens[index],
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "timings_per_token": True,
            "stream": True,
        }
        server.handle_completions(order, on_chunk)

    with ThreadPoolExecutor(max_workers=len(prompts)) as clients:
        list(clients.map(complete, range(len(prompts))))
    return watch.deliveries


def load() -> tuple[Run, dict[str, str]]:
    """Load the model named on the command line."""
    import xllamacpp  # type: ignore[import-not-found]  # of the peer's environment

    path, num_threads, num_slots, slot_context = sys.argv[1], *map(int, sys.argv[2:5])
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_parallel = num_slots
    params.n_ctx = num_slots * slot_context
    params.cpuparams.n_threads = num_threads
    params.cpuparams_batch.n_threads = num_threads
    params.cache_ram_mib = 0
    params.verbosity = 1
    server = xllamacpp.Server(params)
    features = " ".join(xllamacpp.get_system_info().split())
    description = {
        "version": xllamacpp.__version__,
        "setting": f"in-process server, {num_slots} slots, {num_threads} threads, no prompt cache; {features}",
    }
    return lambda prompts, max_tokens: run_requests(server, prompts, max_tokens), description


if __name__ == "__main__":
    serve(load)
