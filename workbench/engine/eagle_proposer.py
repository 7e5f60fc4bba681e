"""The trained head of an engine's model, found, loaded and given its room beside the KV cache."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kernels.ops import DecoderLayerShape, kv_cache_shapes
from workbench.config import EngineConfig
from workbench.errors import ConfigurationError, ModelLoadError
from workbench.models.fingerprint import model_sha256
from workbench.models.loader import LoadedModel
from workbench.speculation.eagle import EagleHead
from workbench.speculation.eagle_file import HeadTarget, head_path, read_head
from workbench.speculation.paged_proposer import PagedProposer, spare_blocks
from workbench.speculation.paged_store import PagedStore

AUTO: Final = "auto"


def make_eagle_proposer(
    config: EngineConfig, target: LoadedModel, *, num_blocks: int, num_swap_blocks: int
) -> PagedProposer | str:
    """Return what drafts with the head that `eagle_head` asks for, or the reason why there is none.

    Raises:
        ConfigurationError, ModelLoadError: a head was named, and cannot be used.
    """
    if config.eagle_head is None:
        return "this engine was started without a trained head (eagle_head)"
    path = head_path(target.config.name) if config.eagle_head == AUTO else Path(config.eagle_head).expanduser()
    if config.eagle_head == AUTO and not path.is_file():
        return f"there is no trained head for {target.config.name}"
    try:
        return _load(config, path, target, num_blocks, num_swap_blocks)
    except (ConfigurationError, ModelLoadError) as error:
        if config.eagle_head != AUTO:
            raise
        return str(error)


def _load(
    config: EngineConfig, path: Path, target: LoadedModel, num_blocks: int, num_swap_blocks: int
) -> PagedProposer:
    shape, model = target.config, target.model
    if any(group.window is not None for group in shape.layer_groups):
        raise ConfigurationError(
            f"eagle_head={config.eagle_head!r}: {shape.name} has sliding windows, whose blocks are given back while a "
            "draft still needs them: leave eagle_head out"
        )
    wanted = head_target(target)
    weights = read_head(path, wanted, model.weights.embedding, model.weights.head, model.ops)
    blocks = kv_cache_shapes(1, config.block_size, shape.num_kv_heads, shape.head_size)
    store = PagedStore(
        model.ops,
        EagleHead.store_shapes(shape.hidden_size, tuple(block[1:] for block in blocks), config.block_size),
        num_blocks=num_blocks,
        num_spare_blocks=spare_blocks(config.block_size),
        num_swap_blocks=num_swap_blocks,
        block_size=config.block_size,
    )
    return PagedProposer(EagleHead(weights, wanted.layer, model.cos_sin, model.ops), store, shape.vocab_size)


def head_target(target: LoadedModel) -> HeadTarget:
    """Return what a head for this model has to fit. Reads the model's file once, for its SHA-256."""
    shape = target.config
    return HeadTarget(
        name=shape.name,
        sha256=model_sha256(target.path),
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        layer=DecoderLayerShape(shape.num_heads, shape.num_kv_heads, shape.head_size, shape.rms_norm_eps),
    )
