"""transformers' `generate` in static batches, float32, from the same GGUF file.

Arguments: path of the GGUF file, number of threads.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from workbench.bench.peer_workers.protocol import Deliveries, Run, serve
from workbench.bench.reference import ReferenceModel

STATIC_BATCH = 8


def run_static_batches(reference: ReferenceModel, prompts: list[list[int]], max_tokens: list[int]) -> Deliveries:
    """Run prompts through `generate` in batches of 8, in order; each batch runs as long as its longest row.

    Tokens past a row's own `max_tokens` are waste and not counted.
    """
    started_s = time.perf_counter()
    deliveries: Deliveries = []
    for first in range(0, len(prompts), STATIC_BATCH):
        wanted = max_tokens[first : first + STATIC_BATCH]
        answer = reference.answer_batch(prompts[first : first + STATIC_BATCH], max(wanted))
        steps = [step_s - started_s for step_s in answer.step_times_s]
        deliveries += [[(step_s, 1) for step_s in steps[:count]] for count in wanted]
    return deliveries


def load() -> tuple[Run, dict[str, str]]:
    """Load the model named on the command line."""
    import transformers

    reference = ReferenceModel(Path(sys.argv[1]), int(sys.argv[2]))
    description = {
        "version": transformers.__version__,
        "setting": f"generate, float32, static batches of {STATIC_BATCH}",
    }
    return lambda prompts, max_tokens: run_static_batches(reference, prompts, max_tokens), description


if __name__ == "__main__":
    serve(load)
