"""A trained head in a file: safetensors in float16, which say in their metadata what model they belong to.

The head's rows are not in the file: they are those of the target's own head, which `vocabulary` names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kernels.ops import DecoderLayerShape, DecoderLayerWeights, Ops
from kernels.weights import LinearWeight, RowWeight
from workbench.errors import ModelLoadError
from workbench.speculation.eagle import EagleWeights, wide_qkv

HEADS: Final = Path(__file__).parent / "heads"
"""Heads that come with the workbench."""
FORMAT: Final = "eagle-head-3"
MATRICES: Final = ("fuse", "qkv", "key_before", "output", "gate_up", "down")
VECTORS: Final = ("token_norm", "input_norm", "post_attention_norm", "final_norm")
VOCABULARY: Final = "vocabulary"
METADATA: Final = frozenset({"format", "target", "target_sha256", "layer", "facts"})
TENSORS: Final = frozenset({*MATRICES, *VECTORS, VOCABULARY})


@dataclass(frozen=True)
class HeadTarget:
    """The model that a head belongs to."""

    name: str
    sha256: str
    """Of the model's file."""
    vocab_size: int
    hidden_size: int
    layer: DecoderLayerShape
    """Of its layers, and so of the head's."""


def head_path(model_name: str) -> Path:
    """Return where the head for a model lies if it comes with the workbench."""
    return HEADS / f"{model_name.replace('/', '--')}.safetensors"


def write_head(path: Path, tensors: Mapping[str, torch.Tensor], target: HeadTarget, facts: Mapping[str, Any]) -> None:
    """Write a head, rounded to float16, so that the file is either whole or not there.

    Args:
        path: file to write.
        tensors: named `TENSORS`, in the shapes of `EagleWeights`, but with `qkv` and `key_before` apart (`wide_qkv`).
        target: what the head was trained for.
        facts: how it was trained and what it is worth; JSON values.
    """
    stored = {name: tensors[name].detach().to(_dtype(name)).contiguous() for name in sorted(TENSORS)}
    _check_shapes(path, {name: tuple(tensor.shape) for name, tensor in stored.items()}, target)
    metadata = {
        "format": FORMAT,
        "target": target.name,
        "target_sha256": target.sha256,
        "layer": _layer_facts(target),
        "facts": json.dumps(dict(facts)),
    }
    unfinished = path.with_suffix(".tmp")
    save_file(stored, unfinished, metadata)
    unfinished.replace(path)


def read_head(
    path: Path, target: HeadTarget, embedding: LinearWeight, target_head: LinearWeight, ops: Ops
) -> EagleWeights:
    """Return the weights of a head in the layout of `ops`.

    Args:
        path: what `write_head` wrote.
        target: the loaded model.
        embedding: of the loaded model; shared, not copied.
        target_head: of the loaded model, [vocab, C]; the head's rows are copied from it.
        ops: what the head will compute with.

    Raises:
        ModelLoadError: missing, truncated or damaged, or made for another model; names the file and the remedy.
    """
    tensors = _read_tensors(path, target)

    def prepared(matrix: torch.Tensor) -> LinearWeight:
        return ops.prepare_weight(_in_large_pages(matrix))

    def matrix(name: str) -> LinearWeight:
        return prepared(tensors[name])

    return EagleWeights(
        token_norm=tensors["token_norm"].float(),
        fuse=matrix("fuse"),
        layer=DecoderLayerWeights(
            input_norm=tensors["input_norm"].float(),
            qkv=prepared(wide_qkv(tensors["qkv"], tensors["key_before"])),
            output=matrix("output"),
            post_attention_norm=tensors["post_attention_norm"].float(),
            gate_up=matrix("gate_up"),
            down=matrix("down"),
        ),
        final_norm=tensors["final_norm"].float(),
        embedding=embedding,
        head=prepared(target_head.rows(tensors[VOCABULARY].long())),
        vocabulary=tensors[VOCABULARY].long(),
    )


def _in_large_pages(matrix: torch.Tensor) -> RowWeight:
    """Return a float16 copy in memory from numpy, which asks for large pages: read faster, see `WeightMemory`.

    A draft takes as long as its weights take to be read: half as long as in float32.
    """
    return RowWeight(torch.from_numpy(np.empty(matrix.shape, np.float16)).copy_(matrix))


def read_facts(path: Path) -> dict[str, Any]:
    """Return what `write_head` noted beside the weights.

    Raises:
        ModelLoadError: the file is missing, truncated or no head.
    """
    return json.loads(_open(path).metadata()["facts"])


def _open(path: Path) -> Any:
    """Return the file's handle; it is whole and says that it is a head."""
    if not path.is_file():
        raise ModelLoadError(f"there is no head {path}: give the path of a file that `train export` wrote")
    try:
        file: Any = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise _error(
            path, f"it is truncated or damaged ({path.stat().st_size:,} bytes, {error})", "export it again"
        ) from error
    metadata = file.metadata() or {}
    if metadata.get("format") != FORMAT or not metadata.keys() >= METADATA:
        raise _error(path, f"it does not say that its format is {FORMAT}", "give a file that `train export` wrote")
    return file


def _read_tensors(path: Path, target: HeadTarget) -> dict[str, torch.Tensor]:
    file = _open(path)
    metadata = file.metadata()
    if metadata["target_sha256"] != target.sha256:
        raise _error(
            path,
            f"it was trained for {metadata['target']} with SHA-256 {metadata['target_sha256'][:12]}…, the loaded model "
            f"is {target.name} with {target.sha256[:12]}…",
            "train one for this model",
        )
    if metadata["layer"] != _layer_facts(target):
        raise _error(path, f"its layer is {metadata['layer']}, the model's {_layer_facts(target)}", "export it again")
    names = frozenset(file.keys())
    if names != TENSORS:
        missing, strange = sorted(TENSORS - names), sorted(names - TENSORS)
        raise _error(path, f"it lacks the tensors {missing} and has {strange} instead", "export it again")
    tensors: dict[str, torch.Tensor] = {name: file.get_tensor(name) for name in TENSORS}
    _check_shapes(path, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, target)
    _check_values(path, tensors, target)
    return tensors


def _check_shapes(path: Path, found: Mapping[str, tuple[int, ...]], target: HeadTarget) -> None:
    hidden, layer = target.hidden_size, target.layer
    heads = layer.num_heads * layer.head_size
    inner = found["down"][-1] if found["down"] else 0
    expected = {
        **dict.fromkeys(VECTORS, (hidden,)),
        "fuse": (hidden, 3 * hidden),
        "qkv": (heads + 2 * layer.num_kv_heads * layer.head_size, 3 * hidden),
        "key_before": (layer.num_kv_heads * layer.head_size, hidden),
        "output": (hidden, heads),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        VOCABULARY: found[VOCABULARY][:1],
    }
    for name in sorted(TENSORS):
        if found[name] != expected[name]:
            raise _error(
                path, f"tensor {name!r} is {found[name]}, {target.name} needs {expected[name]}", "export it again"
            )


def _check_values(path: Path, tensors: Mapping[str, torch.Tensor], target: HeadTarget) -> None:
    for name in sorted(TENSORS):
        if tensors[name].dtype != _dtype(name):
            raise _error(path, f"tensor {name!r} is {tensors[name].dtype}, not {_dtype(name)}", "export it again")
        if not bool(torch.isfinite(tensors[name]).all()):
            raise _error(path, f"tensor {name!r} holds values that are not finite", "export it again")
    vocabulary = tensors[VOCABULARY]
    if len(vocabulary) == 0 or not 0 <= int(vocabulary.min()) <= int(vocabulary.max()) < target.vocab_size:
        raise _error(
            path, f"it drafts tokens that are not within 0 … {target.vocab_size - 1}", "train one for this model"
        )
    if len(vocabulary.unique()) != len(vocabulary):
        raise _error(path, "its vocabulary names a token twice", "export it again")


def _layer_facts(target: HeadTarget) -> str:
    """What a layer's weights do not tell, as JSON."""
    names = ("num_heads", "num_kv_heads", "head_size", "eps")
    return json.dumps({name: getattr(target.layer, name) for name in names})


def _dtype(name: str) -> torch.dtype:
    return torch.int32 if name == VOCABULARY else torch.float16


def _error(path: Path, problem: str, remedy: str) -> ModelLoadError:
    return ModelLoadError(f"cannot use the head {path.name}: {problem}: {remedy}")
