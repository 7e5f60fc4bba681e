"""What a Hugging Face config.json says of a decoder.

A key that is absent means what the architecture's class in transformers defaults to.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from workbench.errors import ModelLoadError
from workbench.models.config import ModelConfig
from workbench.models.json_file import read_json
from workbench.models.rope import read_rope, stretched_length

ARCHITECTURES: Final = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")


DEFAULT_SLIDING_WINDOW: Final = 4096
"""Of Mistral and Qwen2 alike."""


def read_directory_config(path: Path, name: str) -> ModelConfig:
    """Read config.json and, where it is there, generation_config.json.

    The token ids are those of these files; the tokenizer may know more.

    Raises:
        ModelLoadError: unreadable, of an unknown architecture, or with values that are missing,
            out of range or not supported; names the file, the value and the remedy.
    """
    values = read_json(path / "config.json")
    generation_file = path / "generation_config.json"
    generation = read_json(generation_file) if generation_file.is_file() else {}
    try:
        return _interpret(values, generation, name)
    except ModelLoadError as error:
        raise ModelLoadError(
            f"cannot load {path.name}: config.json: {error}: give another model, or correct the file"
        ) from error


def _interpret(values: Mapping[str, Any], generation: Mapping[str, Any], name: str) -> ModelConfig:
    architecture = _architecture(values)
    _refuse_variants(values)
    hidden_size, num_heads = _whole(values, "hidden_size"), _whole(values, "num_attention_heads")
    head_size = _whole(values, "head_dim", default=hidden_size // num_heads)
    num_kv_heads = _whole(values, "num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads or head_size % 2 or head_size < 4:
        raise ModelLoadError(f"{num_heads} heads, {num_kv_heads} key/value heads of {head_size} do not fit")
    theta, scaling = read_rope(values)
    longest = stretched_length(_whole(values, "max_position_embeddings"), scaling)
    vocab_size = _whole(values, "vocab_size")
    has_bias = _is_set(values, "attention_bias") if architecture == "LlamaForCausalLM" else False
    return ModelConfig(
        name=name,
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_whole(values, "intermediate_size"),
        num_layers=_whole(values, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        max_position_embeddings=longest,
        rms_norm_eps=_epsilon(values),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=_is_set(values, "tie_word_embeddings"),
        bos_token_id=next(iter(token_ids(values, "bos_token_id", vocab_size)), None),
        eos_token_ids=frozenset(
            token_ids(values, "eos_token_id", vocab_size) + token_ids(generation, "eos_token_id", vocab_size)
        ),
        qkv_bias=has_bias or architecture == "Qwen2ForCausalLM",
        output_bias=has_bias,
        mlp_bias=_is_set(values, "mlp_bias") if architecture == "LlamaForCausalLM" else False,
        sliding_windows=_sliding_windows(architecture, values, longest),
    )


def _architecture(values: Mapping[str, Any]) -> str:
    named = values.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or named[0] not in ARCHITECTURES:
        shown = ", ".join(map(str, named)) if isinstance(named, list) and named else "none named"
        raise ModelLoadError(f"architecture {shown!r} is not supported (supported: {', '.join(ARCHITECTURES)})")
    return str(named[0])


def _refuse_variants(values: Mapping[str, Any]) -> None:
    """Refuse what would compute something else than the files mean."""
    activation = values.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelLoadError(f"hidden_act {activation!r} is not supported (only 'silu' is)")
    quantization = values.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise ModelLoadError(f"its weights are quantized ({method}), which is not supported for directories")


def _sliding_windows(architecture: str, values: Mapping[str, Any], longest: int) -> tuple[int | None, ...]:
    """Return the window of each layer, as transformers means it; nothing where none is shorter than the context."""
    # Present and null means none; an absent key, the class's default.
    if values.get("sliding_window", DEFAULT_SLIDING_WINDOW) is None:
        return ()
    num_layers = _whole(values, "num_hidden_layers")
    if architecture == "MistralForCausalLM":
        is_sliding = [True] * num_layers
    elif architecture == "Qwen2ForCausalLM" and _is_set(values, "use_sliding_window"):
        is_sliding = _sliding_layers(values, num_layers)
    else:
        return ()
    window = _whole(values, "sliding_window", default=DEFAULT_SLIDING_WINDOW)
    if window >= longest or not any(is_sliding):
        return ()
    return tuple(window if slides else None for slides in is_sliding)


def _sliding_layers(values: Mapping[str, Any], num_layers: int) -> list[bool]:
    """Return for each layer whether it has the window: as the file lists them, or those from some layer on."""
    types = values.get("layer_types")
    if types is None:
        first = _whole(values, "max_window_layers", default=28, least=0)
        return [layer >= first for layer in range(num_layers)]
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != num_layers or any(each not in known for each in types):
        raise ModelLoadError(
            f"layer_types = {types!r} does not name {num_layers} layers, each one of {', '.join(known)}"
        )
    return [each == "sliding_attention" for each in types]


def _whole(values: Mapping[str, Any], key: str, default: int | None = None, least: int = 1) -> int:
    value = default if values.get(key) is None else values[key]
    if value is None:
        raise ModelLoadError(f"it lacks {key!r}")
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ModelLoadError(f"{key} = {value!r} is not a whole number of at least {least}")
    return value


def _is_set(values: Mapping[str, Any], key: str) -> bool:
    value = values.get(key) or False
    if not isinstance(value, bool):
        raise ModelLoadError(f"{key} = {value!r} is neither true nor false")
    return value


def _epsilon(values: Mapping[str, Any]) -> float:
    value = values.get("rms_norm_eps", 1e-6)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ModelLoadError(f"rms_norm_eps = {value!r} is not a number between 0 and 1")
    return float(value)


def token_ids(values: Mapping[str, Any], key: str, vocab_size: int) -> tuple[int, ...]:
    """Return the ids under `key`: none, one or a list of them.

    Raises:
        ModelLoadError: one is not a token of the vocabulary.
    """
    given = values.get(key)
    ids = tuple(given) if isinstance(given, list) else (() if given is None else (given,))
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < vocab_size:
            raise ModelLoadError(f"{key} = {token_id!r} is outside the vocabulary of {vocab_size} tokens")
    return ids
