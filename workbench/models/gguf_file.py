"""A GGUF file as metadata and tensors, with one clear error for every way it can be broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import torch

from workbench.errors import ModelLoadError

_ROWS_AT_ONCE: Final = 4096
"""Rows dequantized in one go: bounds the temporary copy to some megabytes."""


class _Reader(gguf.GGUFReader):  # type: ignore[misc]
    """A reader over the same memory as a plain array: a tokenizer is 250,000 slices, which a memmap makes slowly.

    Opening the default model takes 1.0 s instead of 2.8 (measured).
    """

    @property
    def data(self) -> Any:
        """The whole file, uint8."""
        return self._plain

    @data.setter
    def data(self, mapped: Any) -> None:
        self._plain = mapped.view(np.ndarray)


class GGUFFile:
    """Read-only view of a GGUF file (memory-mapped; nothing is dequantized until asked for).

    Raises:
        ModelLoadError: not a GGUF file, truncated or corrupt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file_bytes = path.stat().st_size
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise self.error(f"it starts with {magic!r}, not b'GGUF'", "give the path of a .gguf file")
        try:
            reader = _Reader(path)
            self.metadata: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        except Exception as error:  # the reader has no error type of its own; whatever it meets, the file is unreadable
            raise self.error(
                f"it is truncated or corrupt ({type(error).__name__}: {error})", "fetch it again"
            ) from error
        self._tensors: dict[str, gguf.ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}

    def error(self, problem: str, remedy: str) -> ModelLoadError:
        """Return an error that names the file, what is wrong and the remedy."""
        return ModelLoadError(f"cannot load {self.path.name} ({self.file_bytes} bytes): {problem}: {remedy}")

    def field(self, key: str) -> Any:
        """Return a metadata value; ModelLoadError when it is missing."""
        if key not in self.metadata:
            raise self.error(f"its metadata lacks {key!r}", "convert the model again with a current converter")
        return self.metadata[key]

    @property
    def tensor_names(self) -> frozenset[str]:
        """Names of all tensors in the file."""
        return frozenset(self._tensors)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(int(tensor.n_bytes) for tensor in self._tensors.values())

    @property
    def source_format(self) -> str:
        """Storage type of most elements, for example `GGUF Q4_1`."""
        elements: Counter[str] = Counter()
        for tensor in self._tensors.values():
            elements[tensor.tensor_type.name] += int(tensor.n_elements)
        return f"GGUF {elements.most_common(1)[0][0]}"

    def read_into(self, name: str, target: torch.Tensor, on_bytes: Callable[[int], None]) -> None:
        """Dequantize a tensor into target (contiguous float32, its shape), a slice of rows at a time.

        on_bytes: called with the number of stored bytes that were just consumed.

        Raises:
            ModelLoadError: missing, of another shape, or of a storage type that is not understood.
        """
        tensor = self._tensors.get(name)
        if tensor is None:
            raise self.error(f"it has no tensor {name!r}", "fetch or convert the model again")
        shape = tuple(reversed([int(n) for n in tensor.shape]))
        if shape != tuple(target.shape):
            raise self.error(f"tensor {name!r} is {shape}, expected {tuple(target.shape)}", "convert the model again")
        view = target.numpy()
        rows = _ROWS_AT_ONCE if len(shape) == 2 else max(shape[0], 1)
        for start in range(0, shape[0], rows):
            stored = tensor.data[start : start + rows]
            try:
                view[start : start + rows] = gguf.dequantize(stored, tensor.tensor_type)
            except NotImplementedError as error:
                raise self.error(
                    f"tensor {name!r} is stored as {tensor.tensor_type.name}, which is not supported",
                    "use a file of another quantization, for example Q4_K_M, Q8_0 or F16",
                ) from error
            on_bytes(int(stored.nbytes))
        if not np.isfinite(view).all():
            raise self.error(f"tensor {name!r} holds values that are not finite", "it is corrupt, fetch it again")
