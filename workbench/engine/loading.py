"""From a configuration to a running core: pick kernels, load the model, allocate the pool."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

# Before torch, so that numba's kernels and torch share one OpenMP runtime. Where it cannot load,
# `choose_backend` meets the same error again and says so.
with suppress(ImportError, RuntimeError):
    import kernels.cpu.numba_setup  # noqa: F401 - loading it is the point

# isort: split
import torch

from kernels.ops import Ops, load_backend
from workbench.config import EngineConfig
from workbench.engine.core import EngineCore
from workbench.errors import BackendUnavailableError
from workbench.models.loader import LoadedModel, LoadProgress, load_model


@dataclass(frozen=True)
class Loaded:
    """A core, and what a person should know of how it came to be."""

    core: EngineCore
    ops: Ops
    notices: tuple[str, ...]
    """What the backend and the model cannot do."""
    layout_notices: tuple[str, ...] = ()
    """What the settings of this engine exclude."""


def choose_backend(config: EngineConfig) -> tuple[Ops, tuple[str, ...]]:
    """Return the kernel backend and notices about what is not active.

    `auto` means the compiled CPU kernels. Should they fail to load, the reference kernels serve
    and a notice says so and why; asked for by name, a backend that cannot run is an error.

    Raises:
        BackendUnavailableError: the backend asked for cannot run here.
    """
    if config.kernel_backend != "auto":
        try:
            return load_backend(config.kernel_backend), ()
        except (ImportError, RuntimeError) as error:
            raise BackendUnavailableError(
                f"kernel_backend={config.kernel_backend!r} cannot run here: {error}"
            ) from error
    try:
        return load_backend("cpu"), ()
    except (ImportError, RuntimeError) as error:
        notice = f"The compiled CPU kernels are not active ({error}); the slow reference kernels serve instead."
        return load_backend("reference"), (notice,)


def load_engine(
    config: EngineConfig, epoch: int, progress: Callable[[LoadProgress], None], reuse: Loaded | None = None
) -> Loaded:
    """Load everything that `config` asks for; must run in the engine's own thread.

    Args:
        config: of the new engine.
        epoch: number of the new engine.
        progress: called often with what is being done; an exception that it raises ends the load.
        reuse: the former engine; its model is kept where the new configuration asks for the same.

    Raises:
        BackendUnavailableError, ModelLoadError, ConfigurationError.
    """
    loaded: LoadedModel
    draft: LoadedModel | None
    if reuse is not None and _has_same_model(reuse.core.config, config):
        ops, notices, loaded, draft = reuse.ops, reuse.notices, reuse.core.loaded, reuse.core.draft
        set_threads(ops, config)
    else:
        progress(LoadProgress("compiling kernels", 0, 0))
        ops, notices = choose_backend(config)
        set_threads(ops, config)
        ops.warm_up()
        loaded = load_model(config.model, ops, progress)
        draft = None if config.draft_model is None else load_model(config.draft_model, ops, progress)
        notices += loaded.notices
    progress(LoadProgress("allocating the KV cache", 0, 0))
    return Loaded(EngineCore(config, loaded, epoch, draft), ops, notices, layout_notices(config))


def layout_notices(config: EngineConfig) -> tuple[str, ...]:
    """Return what the KV layout does not allow."""
    if config.kv_layout == "paged":
        return ()
    return ("The contiguous layout shares no blocks: the prefix cache and beam search are not active.",)


def set_threads(ops: Ops, config: EngineConfig) -> None:
    """Set the threads of kernels and torch for the calling thread (the setting is thread-local)."""
    num_threads = config.kernel_threads
    ops.set_num_threads(num_threads)
    torch.set_num_threads(num_threads)


def _has_same_model(old: EngineConfig, new: EngineConfig) -> bool:
    names = ("model", "draft_model", "dtype", "kernel_backend")
    return all(getattr(old, name) == getattr(new, name) for name in names)


def engine_thread_mode() -> AbstractContextManager[None]:
    """Return the mode that an engine thread runs in: no gradients (the setting is thread-local)."""
    return torch.inference_mode()
