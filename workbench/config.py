"""Frozen configuration of an engine, and the only place that reads environment variables.

Field names are vLLM's where vLLM has the same thing. Values that have to be derived (the number
of blocks from a byte budget, the context length from the model) are computed by functions that
return them; they are never written back.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any, Final

from workbench.errors import ConfigurationError

DEFAULT_MODEL: Final = "SmolLM2-135M-Instruct"
"""Name of the model that ships as a Python package; see `workbench.models.default_model`."""

BLOCK_SIZES: Final = (8, 16, 32)
DTYPES: Final = ("float32",)
SCHEDULING_POLICIES: Final = ("fcfs", "priority", "sjf")
ADMISSION_POLICIES: Final = ("strict", "first_fit", "best_fit")
PREEMPTION_MODES: Final = ("recompute", "swap", "auto")
KV_LAYOUTS: Final = ("paged", "contiguous")
KV_PLACEMENTS: Final = ("first_fit", "best_fit")
KERNEL_BACKENDS: Final = ("auto", "cpu", "reference")

DEFAULT_KV_CACHE_BYTES: Final = 1 << 30
"""Bytes of KV cache when neither `num_blocks` nor `kv_cache_bytes` is given: 1 GiB."""

LIVE_FIELDS: Final = frozenset({"max_num_batched_tokens", "max_num_seqs", "enable_prefix_caching"})
"""Fields that a running engine takes over between two steps; all others need a reload."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything that decides how an engine runs.

    Raises:
        ConfigurationError: a value is out of range; the message names value, limit and remedy.
    """

    model: str = DEFAULT_MODEL
    """Name of the packaged model, path of a GGUF file or of a Hugging Face directory, or a hub id."""
    dtype: str = "float32"
    """Compute dtype of weights and KV cache."""
    block_size: int = 16
    """Tokens per KV block."""
    num_blocks: int | None = None
    """Number of KV blocks; takes precedence over `kv_cache_bytes`."""
    kv_cache_bytes: int | None = None
    """Byte budget for the KV cache, from which the number of blocks is derived."""
    max_model_len: int | None = None
    """Longest context (prompt + output) in tokens; the model's own limit when None."""
    max_num_batched_tokens: int = 512
    """Token budget of one step, prefill and decode together."""
    max_num_seqs: int = 64
    """Most requests that run in one step."""
    max_num_waiting: int = 1024
    """Most requests that may wait; one more is refused with QueueFullError."""
    enable_prefix_caching: bool = True
    """Keep the blocks of ended requests and begin new ones with those that hold the same tokens."""
    scheduling_policy: str = "fcfs"
    """Who goes first: by arrival (`fcfs`), by `priority`, or who has the fewest tokens left (`sjf`)."""
    admission_policy: str = "strict"
    """Who may start when the first in the queue does not fit: nobody, the `first_fit` or the `best_fit`."""
    preemption_mode: str = "recompute"
    """What becomes of a context that has to make room: it is computed again later (`recompute`), kept in host
    memory (`swap`), or whichever is estimated to cost less (`auto`)."""
    swap_space: float = 0.5
    """GiB of host memory for swapped contexts; taken only when the preemption mode may swap."""
    kv_layout: str = "paged"
    """`contiguous` reserves consecutive blocks for all that a request may become, as engines did before paging."""
    kv_placement: str = "first_fit"
    """Where a contiguous request goes: into the first run of free blocks that is long enough, or the tightest."""
    draft_model: str | None = None
    """A smaller model with the same tokenizer, named as `model` is, that can draft tokens ahead."""
    eagle_head: str | None = "auto"
    """A trained head that drafts from the model's hidden states: the shipped one where there is one for this very
    model (`auto`), the path of another, or None for none."""
    kernel_backend: str = "auto"
    """`auto` takes the compiled CPU kernels and says aloud when it cannot."""
    num_threads: int | None = None
    """Threads of the CPU kernels; when None, what `OMP_NUM_THREADS` says, or all cores that this process may use."""
    check_integrity: bool = False
    """Check every invariant of the memory manager after each step (tests)."""

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("block_size", self.block_size, BLOCK_SIZES)
        _one_of("scheduling_policy", self.scheduling_policy, SCHEDULING_POLICIES)
        _one_of("admission_policy", self.admission_policy, ADMISSION_POLICIES)
        _one_of("preemption_mode", self.preemption_mode, PREEMPTION_MODES)
        _one_of("kv_layout", self.kv_layout, KV_LAYOUTS)
        _one_of("kv_placement", self.kv_placement, KV_PLACEMENTS)
        _one_of("kernel_backend", self.kernel_backend, KERNEL_BACKENDS)
        if not isinstance(self.enable_prefix_caching, bool):
            raise ConfigurationError(f"enable_prefix_caching={self.enable_prefix_caching!r} must be true or false")
        if isinstance(self.swap_space, bool) or not isinstance(self.swap_space, int | float) or not self.swap_space > 0:
            raise ConfigurationError(f"swap_space={self.swap_space!r} must be a number of GiB above 0")
        if not isinstance(self.model, str) or not self.model:
            raise ConfigurationError(
                f"model={self.model!r} is not a name: give {DEFAULT_MODEL!r}, a path to a GGUF file "
                "or to a Hugging Face directory, or a hub id"
            )
        if self.draft_model is not None and (not isinstance(self.draft_model, str) or not self.draft_model):
            raise ConfigurationError(f"draft_model={self.draft_model!r} is not a name: give one as for model, or None")
        if self.eagle_head is not None and (not isinstance(self.eagle_head, str) or not self.eagle_head):
            raise ConfigurationError(f"eagle_head={self.eagle_head!r} is not a path: give one, 'auto', or None")
        for name in ("num_blocks", "kv_cache_bytes", "max_model_len", "num_threads"):
            if getattr(self, name) is not None:
                _at_least_one(name, getattr(self, name))
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_num_waiting"):
            _at_least_one(name, getattr(self, name))
        cores = usable_cores()
        if self.num_threads is not None and self.num_threads > cores:
            raise ConfigurationError(
                f"num_threads={self.num_threads} is more than the {cores} cores that this process may use: "
                f"give 1 to {cores}"
            )

    @property
    def kernel_threads(self) -> int:
        """Threads that the CPU kernels get, at least 1."""
        cores = usable_cores()
        return self.num_threads or min(_openmp_threads() or cores, cores)

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> EngineConfig:
        """Build a configuration from plain data, refusing unknown names.

        Raises:
            ConfigurationError: an unknown field, or a value out of range.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigurationError(
                f"unknown engine setting {', '.join(map(repr, unknown))}: known are {', '.join(sorted(known))}"
            )
        return cls(**values)


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed or isinstance(value, bool):
        raise ConfigurationError(f"{name}={value!r} is not supported: choose one of {', '.join(map(str, allowed))}")


def _at_least_one(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{name}={value!r} must be a whole number of at least 1")


# ------------------------------------------------------------------------------- environment


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What the process environment says. Read once, by `read_environment`."""

    host: str | None
    port: str | None
    preset: str | None
    model: str | None
    token: str | None
    """What visitors from other machines have to bring (`WORKBENCH_TOKEN`)."""
    browser: str | None
    """Path of a Chromium for the browser tests (`WORKBENCH_CHROMIUM`)."""
    require_browser: bool
    """Browser tests fail instead of skipping without one (`WORKBENCH_REQUIRE_BROWSER=1`)."""


def read_environment() -> Environment:
    """Return the environment variables that this project understands. Empty counts as unset."""
    get = os.environ.get
    return Environment(
        host=get("HOST") or None,
        port=get("PORT") or None,
        preset=get("PRESET") or None,
        model=get("MODEL") or None,
        token=get("WORKBENCH_TOKEN") or None,
        browser=get("WORKBENCH_CHROMIUM") or None,
        require_browser=get("WORKBENCH_REQUIRE_BROWSER") == "1",
    )


def usable_cores() -> int:
    """Return how many cores this process may run on, which `taskset` or a container's cpuset may limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _openmp_threads() -> int | None:
    """Return what `OMP_NUM_THREADS` says of the outermost level, None where it says nothing that is a number."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def prepare_process() -> None:
    """Set process-wide switches of libraries; call before gradio, numba or torch are imported."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("NUMBA_THREADING_LAYER", "omp")
    # Threads that wait for work spin a little before they sleep. Measured: this little costs nothing on
    # an idle machine, while the runtime's own default halves the speed when other programs want the cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
