"""OpenVINO GenAI's continuous batching, from the same GGUF file, in the precision it picks for it.

Arguments: path of the GGUF file, number of threads, most requests at once.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

from workbench.bench.peer_workers.protocol import Deliveries, Run, Stopwatch, serve

KV_CACHE_GIB = 1


def run_requests(add: Callable[[list[int], int], Any], pipeline: Any, prompts: Any, max_tokens: Any) -> Deliveries:
    """Submit all prompts with `add`, then step the pipeline and read what each step brought."""
    watch = Stopwatch(len(prompts))
    handles = [add(prompt, wanted) for prompt, wanted in zip(prompts, max_tokens, strict=True)]
    while pipeline.has_non_finished_requests():
        pipeline.step()
        for index, handle in enumerate(handles):
            while handle.can_read():
                (output,) = handle.read().values()
                if output.generated_ids:
                    watch.note(index, len(output.generated_ids))
    return watch.deliveries


def load() -> tuple[Run, dict[str, str]]:
    """Load the model named on the command line."""
    import numpy as np
    import openvino  # type: ignore[import-not-found]  # of the peer's environment
    import openvino_genai as genai  # type: ignore[import-not-found]  # of the peer's environment

    path, num_threads, max_num_seqs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = KV_CACHE_GIB
    scheduler.max_num_seqs = max_num_seqs
    scheduler.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": num_threads})
    names = itertools.count()

    def add(prompt: list[int], wanted: int) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens = wanted
        config.ignore_eos = True
        config.do_sample = False
        return pipeline.add_request(next(names), openvino.Tensor(np.array([prompt], dtype=np.int64)), config)

    description = {
        "version": genai.__version__,
        "setting": f"ContinuousBatchingPipeline from GGUF, {num_threads} threads, no prefix cache",
    }
    return lambda prompts, max_tokens: run_requests(add, pipeline, prompts, max_tokens), description


if __name__ == "__main__":
    serve(load)
