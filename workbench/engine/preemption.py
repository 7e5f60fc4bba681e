"""What becomes of a context that has to make room: computed again later, or kept in host memory."""

from __future__ import annotations

from workbench.engine.kv_cache_manager import KVCacheManager

SMOOTHING = 0.1
"""Share of the latest step in the estimate of what a token costs."""


class Preemption:
    """Chooses between recomputing and swapping (arXiv 2309.06180, section 4.5), and gives the figures behind it.

    It reads no clock: what a token and a block cost is told to it.
    """

    def __init__(self, kv_cache: KVCacheManager, mode: str) -> None:
        """`mode` is one of `workbench.config.PREEMPTION_MODES`."""
        self.kv_cache = kv_cache
        self.mode = mode
        self.block_transfer_s = 0.0
        """Seconds to copy one block to host memory, or back."""
        self.token_compute_s: float | None = None
        """Seconds to compute one token of a prompt; None until one was computed."""

    def observe(self, num_tokens: int, num_prefill_tokens: int, execute_s: float) -> None:
        """Learn from a step what a token costs. Only steps that mostly recompute or prefill tell."""
        if num_tokens == 0 or 2 * num_prefill_tokens < num_tokens:
            return
        latest, known = execute_s / num_tokens, self.token_compute_s
        self.token_compute_s = latest if known is None else known + SMOOTHING * (latest - known)

    def keeps(self, request_id: str, num_tokens: int) -> tuple[bool, dict[str, int]]:
        """Return whether to swap out a context of `num_tokens` computed tokens, and the figures that decided it."""
        if self.mode == "recompute" or num_tokens == 0:
            return False, {}
        num_blocks, num_free = self.kv_cache.num_to_swap(request_id, num_tokens), self.kv_cache.swap_space.num_free
        numbers = {} if self.mode == "swap" else self._estimates(request_id, num_tokens, num_blocks)
        if num_blocks > num_free:
            return False, numbers | {"free_swap_blocks": num_free}
        if self.mode == "auto" and numbers.get("recompute_us", 0) <= numbers["swap_us"]:
            return False, numbers
        return True, numbers | {"swapped_blocks": num_blocks}

    def _estimates(self, request_id: str, num_tokens: int, num_blocks: int) -> dict[str, int]:
        """Microseconds of both ways. Blocks that others hold will be found again, so they are not lost."""
        swap_us = {"swap_us": round(2e6 * num_blocks * self.block_transfer_s)}
        if self.token_compute_s is None:
            return swap_us
        found = self.kv_cache.num_shared_tokens(request_id, num_tokens) if self.kv_cache.enable_prefix_caching else 0
        return swap_us | {"recompute_us": round(1e6 * (num_tokens - found) * self.token_compute_s)}
