"""The safetensors files of a Hugging Face directory as one set of tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open

from workbench.errors import ModelLoadError
from workbench.models.json_file import read_json

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
DTYPES: Final = {"F32": 4, "F16": 2, "BF16": 2}
"""Storage types that are read, and their bytes."""

_ROWS_AT_ONCE: Final = 4096
"""Rows converted in one go: bounds the temporary copy to some megabytes."""


class SafetensorsDirectory:
    """Read-only view of `model.safetensors`, or of the shards that an index names.

    Files are memory-mapped: a tensor's bytes are read when they are converted into their target.

    Raises:
        ModelLoadError: no such files, a shard is missing, or one is truncated or corrupt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, str] = {}
        """Tensor name → file name."""
        self._handles: dict[str, Any] = {}
        shards = self._find_shards()
        for shard in sorted(set(shards.values()) or {SINGLE}):
            self._open(shard)
        for name, shard in sorted(shards.items()):
            if name not in self._handles[shard].keys():  # noqa: SIM118 - a handle is no mapping
                raise self.error(f"{shard} lacks tensor {name!r}, which {INDEX} says it holds", "fetch it again")
            self._files[name] = shard

    def error(self, problem: str, remedy: str) -> ModelLoadError:
        """Return an error that names the directory, what is wrong and the remedy."""
        return ModelLoadError(f"cannot load {self.path.name}: {problem}: {remedy}")

    @property
    def tensor_names(self) -> frozenset[str]:
        """Names of all tensors in all files."""
        return frozenset(self._files)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(numel * DTYPES.get(dtype, 0) for dtype, numel in self._elements().items())

    @property
    def file_bytes(self) -> int:
        """Bytes of all files."""
        return sum((self.path / file).stat().st_size for file in self._handles)

    @property
    def source_format(self) -> str:
        """Storage type of most elements, for example `safetensors BF16`."""
        return f"safetensors {self._elements().most_common(1)[0][0]}"

    def read_into(self, name: str, target: torch.Tensor, on_bytes: Callable[[int], None]) -> None:
        """Convert a tensor into target (contiguous float32, its shape), a slice of rows at a time.

        on_bytes: called with the number of stored bytes that were just consumed.

        Raises:
            ModelLoadError: missing, of another shape or dtype, or with values that are not finite.
        """
        file = self._files.get(name)
        if file is None:
            raise self.error(f"its files have no tensor {name!r}", "fetch the model again, all files of it")
        tensor = self._handles[file].get_slice(name)
        shape, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
        if shape != tuple(target.shape):
            raise self.error(
                f"tensor {name!r} in {file} is {shape}, config.json means {tuple(target.shape)}",
                "fetch config.json and the weights again, from one place",
            )
        if dtype not in DTYPES:
            raise self.error(
                f"tensor {name!r} in {file} is stored as {dtype}",
                f"give a model that is stored as {', '.join(DTYPES)}",
            )
        for start in range(0, shape[0], _ROWS_AT_ONCE):
            stored, rows = tensor[start : start + _ROWS_AT_ONCE], target[start : start + _ROWS_AT_ONCE]
            rows.copy_(stored)
            # A sum is five times as fast, and finite unless a value is not (or, hardly ever, it overflows).
            if not math.isfinite(rows.sum().item()) and not torch.isfinite(rows).all():
                raise self.error(
                    f"tensor {name!r} in {file} holds values that are not finite", "it is corrupt, fetch it again"
                )
            on_bytes(stored.numel() * stored.element_size())

    def _elements(self) -> Counter[str]:
        """Return the number of elements by storage type."""
        elements: Counter[str] = Counter()
        for name, file in self._files.items():
            tensor = self._handles[file].get_slice(name)
            elements[tensor.get_dtype()] += torch.Size(tensor.get_shape()).numel()
        return elements

    def _find_shards(self) -> dict[str, str]:
        """Return tensor name → file name as the index says; empty where there is one single file."""
        if (self.path / SINGLE).is_file():
            return {}
        if not (self.path / INDEX).is_file():
            others = sorted(file.name for file in self.path.glob("*.bin"))
            found = f", only {others[0]}, a pickle, which is not read" if others else ""
            raise self.error(f"it has neither {SINGLE} nor {INDEX}{found}", "give a model that is saved as safetensors")
        shards = read_json(self.path / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not shards or not all(isinstance(file, str) for file in shards.values()):
            raise self.error(f"{INDEX} has no weight_map of tensors to files", "fetch it again")
        for file in sorted(set(shards.values())):
            if Path(file).name != file:
                raise self.error(f"{INDEX} names {file!r}, which is not a file beside it", "fetch it again")
            if not (self.path / file).is_file():
                count = sum(1 for name in shards.values() if name == file)
                raise self.error(f"the shard {file} with {count} of its tensors is missing", "fetch the model again")
        return shards

    def _open(self, file: str) -> None:
        size = (self.path / file).stat().st_size
        try:
            handle: Any = safe_open(self.path / file, framework="pt")
            names = list(handle.keys())
        except Exception as error:  # the library's own error derives from Exception; others mean the same here
            raise self.error(
                f"{file} ({size} bytes) is truncated or corrupt ({error})",
                "fetch it again (a file of about 130 bytes is a Git LFS pointer: run `git lfs pull`)",
            ) from error
        self._handles[file] = handle
        self._files.update(dict.fromkeys(names, file))
