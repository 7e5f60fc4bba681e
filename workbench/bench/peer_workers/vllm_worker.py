"""vLLM's CPU backend, float32, from a Hugging Face directory; tokens stream out of its engine process.

Arguments: path of the directory, longest context in tokens, most requests at once, `compiled` or `eager`.
"""

from __future__ import annotations

import sys
from typing import Any

from workbench.bench.peer_workers.protocol import Deliveries, Run, Stopwatch, serve

KV_CACHE_BYTES = 1 << 30
"""As much as our engine's default."""


def run_requests(engine: Any, make_params: Any, prompts: list[list[int]], max_tokens: list[int]) -> Deliveries:
    """Submit all prompts, then take tokens as the engine process hands them out."""
    watch = Stopwatch(len(prompts))
    for index, (prompt, wanted) in enumerate(zip(prompts, max_tokens, strict=True)):
        engine.add_request(str(index), {"prompt_token_ids": prompt}, make_params(wanted))
    while engine.has_unfinished_requests():
        for output in engine.step():
            count = len(output.outputs[0].token_ids)
            if count:
                watch.note(int(output.request_id), count)
    return watch.deliveries


def load() -> tuple[Run, dict[str, str]]:
    """Load the model named on the command line."""
    import vllm  # type: ignore[import-not-found]  # of the peer's environment
    from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]  # of the peer's environment

    path, max_model_len, max_num_seqs, mode = sys.argv[1:5]
    arguments = vllm.EngineArgs(
        model=path,
        dtype="float32",
        skip_tokenizer_init=True,
        max_model_len=int(max_model_len),
        max_num_seqs=int(max_num_seqs),
        kv_cache_memory_bytes=KV_CACHE_BYTES,
        enable_prefix_caching=False,
        enforce_eager=mode == "eager",
        disable_log_stats=True,
    )
    engine = vllm.LLMEngine.from_engine_args(arguments)

    def make_params(wanted: int) -> Any:
        return vllm.SamplingParams(
            temperature=0,
            max_tokens=wanted,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    description = {
        "version": vllm.__version__,
        "setting": f"LLMEngine, float32, {mode}, no prefix cache, no detokenizing",
    }
    return lambda prompts, max_tokens: run_requests(engine, make_params, prompts, max_tokens), description


if __name__ == "__main__":
    serve(load)
