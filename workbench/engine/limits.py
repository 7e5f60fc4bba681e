"""Limits derived from the configuration and the model: context length, block bytes, pool size."""

from __future__ import annotations

import psutil

from workbench.config import DEFAULT_KV_CACHE_BYTES, EngineConfig
from workbench.errors import ConfigurationError, KVCacheTooLargeError
from workbench.models.config import ModelConfig

GIB = 1 << 30
MEMORY_RESERVE = 0.1
"""Share of the free memory that is left to everything else."""


def resolve_max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    """Return the longest context in tokens.

    Raises:
        ConfigurationError: it was set beyond what the model was trained for.
    """
    limit = model.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > limit:
        raise ConfigurationError(
            f"max_model_len={config.max_model_len} is more than the {limit} positions of {model.name}: "
            f"give at most {limit}"
        )
    return config.max_model_len or limit


def kv_block_bytes(model: ModelConfig, block_size: int) -> int:
    """Return the bytes of one block: keys and values of `block_size` tokens in every layer of a group."""
    return 2 * model.layers_per_block * block_size * model.num_kv_heads * model.head_size * 4


def resolve_num_blocks(config: EngineConfig, model: ModelConfig) -> int:
    """Return the number of KV blocks that the configuration asks for.

    Raises:
        KVCacheTooLargeError: they do not fit in the memory that is free now.
        ConfigurationError: the byte budget is smaller than one block.
    """
    block_bytes = kv_block_bytes(model, config.block_size)
    usable = int(psutil.virtual_memory().available * (1 - MEMORY_RESERVE))
    if config.num_blocks is not None:
        count, asked = config.num_blocks, f"num_blocks={config.num_blocks}"
    elif config.kv_cache_bytes is not None:
        count, asked = config.kv_cache_bytes // block_bytes, f"kv_cache_bytes={config.kv_cache_bytes:,}"
    else:
        count, asked = min(DEFAULT_KV_CACHE_BYTES, usable) // block_bytes, "the default KV cache"
    if count < 1:
        raise ConfigurationError(
            f"{asked} holds no block: one block of {config.block_size} tokens takes {block_bytes:,} bytes, "
            "give at least that"
        )
    if count * block_bytes > usable:
        raise KVCacheTooLargeError(
            f"{asked} needs {count * block_bytes:,} bytes ({count:,} blocks of {block_bytes:,} bytes), "
            f"{usable:,} bytes of memory are usable: give num_blocks of at most {usable // block_bytes:,}"
        )
    return count


def resolve_num_swap_blocks(config: EngineConfig, model: ModelConfig, num_blocks: int) -> int:
    """Return how many blocks the swap space holds: none where preemption only recomputes.

    Raises:
        ConfigurationError: it is smaller than one block.
        KVCacheTooLargeError: it does not fit beside the KV cache in the memory that is free now.
    """
    if config.preemption_mode == "recompute":
        return 0
    block_bytes = kv_block_bytes(model, config.block_size)
    count = int(config.swap_space * GIB) // block_bytes
    if count < 1:
        raise ConfigurationError(
            f"swap_space={config.swap_space} GiB holds no block: one block of {config.block_size} tokens takes "
            f"{block_bytes:,} bytes, give at least {block_bytes / GIB:.6f}"
        )
    usable = int(psutil.virtual_memory().available * (1 - MEMORY_RESERVE)) - num_blocks * block_bytes
    if count * block_bytes > usable:
        raise KVCacheTooLargeError(
            f"swap_space={config.swap_space} GiB does not fit: {max(0, usable) / GIB:.2f} GiB of memory are usable "
            f"beside the KV cache of {num_blocks:,} blocks: give less swap_space or fewer blocks"
        )
    return count
