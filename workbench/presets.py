"""Presets: named engine and sampling settings, read from TOML files and validated.

A preset file holds `title`, `description`, `[engine]` (fields of `EngineConfig`), `[sampling]`
(fields of `SamplingParams`) and `[speculation]` (fields of `SpeculationParams`). The file's stem is
the preset's name. TOML has no null: `max_tokens` left out means as many as the context allows, `seed`
left out means none; in the table `logit_bias` token ids are keys, and keys are text. The page can
save such files (`ui.preset_store`).
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from workbench.config import EngineConfig
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import NO_SPECULATION, SpeculationParams

T = TypeVar("T")

PRESET_DIRECTORY: Final = Path(__file__).resolve().parent.parent / "presets"
DEFAULT_PRESET: Final = "default"
_TABLES: Final = ("engine", "sampling", "speculation")
SAMPLING_FIELDS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "max_tokens",
    "stop",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "bad_words",
    "logit_bias",
    "ignore_eos",
    "n",
    "use_beam_search",
    "beam_width",
    "length_penalty",
    "early_stopping",
)
"""Sampling settings that a preset may give: those that the page shows, in its order."""
SPECULATION_FIELDS: Final = SpeculationParams.__struct_fields__
"""Settings of drafting that a preset may give: all of them."""


@dataclass(frozen=True)
class Preset:
    """One named set of settings."""

    name: str
    title: str
    description: str
    engine: Mapping[str, Any]
    """Fields of `EngineConfig` that the preset sets; the rest keeps its default."""
    sampling: SamplingParams
    speculation: SpeculationParams = NO_SPECULATION

    def engine_config(self, **overrides: Any) -> EngineConfig:
        """Return the engine configuration, with `overrides` (None means not given) on top.

        `num_blocks` and `kv_cache_bytes` both size the pool: overriding one drops the preset's other.

        Raises:
            ConfigurationError: a value is out of range.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        values = dict(self.engine)
        if "kv_cache_bytes" in given and "num_blocks" not in given:
            values.pop("num_blocks", None)
        return EngineConfig.from_mapping(values | given)


def load_presets(directory: Path = PRESET_DIRECTORY) -> dict[str, Preset]:
    """Read every `*.toml` in `directory`, ordered with `default` first, then by name.

    Raises:
        ConfigurationError: no preset at all, or a file that is not valid; the message names the
            file, the key, the value and the remedy.
    """
    paths = sorted(directory.glob("*.toml"), key=lambda path: (path.stem != DEFAULT_PRESET, path.stem))
    if not paths:
        raise ConfigurationError(f"no preset in {directory}: expected at least {DEFAULT_PRESET}.toml")
    return {path.stem: read_preset(path) for path in paths}


def select_preset(presets: Mapping[str, Preset], name: str) -> Preset:
    """Return the preset called `name`.

    Raises:
        ConfigurationError: there is none; the message lists those that exist.
    """
    if name not in presets:
        raise ConfigurationError(f"preset {name!r} does not exist: choose one of {', '.join(presets)}")
    return presets[name]


def read_preset(path: Path) -> Preset:
    """Read and validate one preset file.

    Raises:
        ConfigurationError: the file is unreadable, not TOML, or holds an unknown key or a wrong value.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"preset {path}: {error}; mend the file or remove it") from error
    return parse_preset(path, text)


def parse_preset(path: Path, text: str) -> Preset:
    """Validate the text of a preset file; `path` gives its name and stands in the messages.

    Raises:
        ConfigurationError: the text is not TOML, or holds an unknown key or a wrong value.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"preset {path}: {error}; mend the file or remove it") from error
    _refuse_unknown(path, "", data, ("title", "description", *_TABLES))
    for key in ("title", "description"):
        if not isinstance(data.get(key), str) or not data[key].strip():
            raise ConfigurationError(f"preset {path}: {key}={data.get(key)!r} must be a text of at least one character")
    for key in _TABLES:
        if not isinstance(data.get(key, {}), dict):
            raise ConfigurationError(f"preset {path}: {key}={data[key]!r} must be a table, [{key}]")
    engine = data.get("engine", {})
    _check_table(path, "engine", engine, EngineConfig, _ENGINE_TYPES, tuple(_ENGINE_TYPES))
    sampling = data.get("sampling", {})
    _check_table(path, "sampling", sampling, _sampling_params, _SAMPLING_TYPES, SAMPLING_FIELDS)
    speculation = data.get("speculation", {})
    _check_table(path, "speculation", speculation, SpeculationParams, _SPECULATION_TYPES, SPECULATION_FIELDS)
    # values that are right alone may be wrong together
    params = _together(path, "sampling", lambda: _sampling_params(**sampling))
    wishes = _together(path, "speculation", lambda: SpeculationParams(**speculation))
    return Preset(path.stem, data["title"], data["description"], engine, params, wishes)


def _together(path: Path, table: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except WorkbenchError as error:
        raise ConfigurationError(f"preset {path}: [{table}] {error}") from error


def _sampling_params(**values: Any) -> SamplingParams:
    """Build sampling parameters from what TOML can say."""
    bias = values.get("logit_bias", {})
    if wrong := [key for key in bias if not key.isdecimal()]:
        raise ConfigurationError(f"logit_bias: {wrong[0]!r} is not a token id: give whole numbers as keys")
    biased = {"logit_bias": {int(key): value for key, value in bias.items()}}
    return SamplingParams(**({"max_tokens": None} | values | biased))


_ENGINE_TYPES: Final = {
    field.name: typing.get_type_hints(EngineConfig)[field.name] for field in dataclasses.fields(EngineConfig)
}
_SAMPLING_TYPES: Final = typing.get_type_hints(SamplingParams)
_SPECULATION_TYPES: Final = typing.get_type_hints(SpeculationParams)


def _check_table(
    path: Path,
    table: str,
    values: dict[str, Any],
    make: Callable[..., object],
    types_of: dict[str, Any],
    known: tuple[str, ...],
) -> None:
    """Refuse `values` unless each key is known and each value, tried alone, is accepted by `make`."""
    _refuse_unknown(path, f"[{table}] ", values, known)
    for key, value in values.items():
        if not _fits(value, types_of[key]):
            raise ConfigurationError(
                f"preset {path}: [{table}] {key}={value!r} has the wrong type: give {_type_words(types_of[key])}"
            )
        try:
            make(**{key: value})
        except WorkbenchError as error:
            raise ConfigurationError(f"preset {path}: [{table}] {error}") from error


def _refuse_unknown(path: Path, where: str, values: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in values:
        if key not in known:
            raise ConfigurationError(
                f"preset {path}: {where}{key}={values[key]!r} is not a known key: "
                f"remove it or use one of {', '.join(known)}"
            )


def _kinds(hint: Any) -> list[type]:
    alternatives = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return [typing.get_origin(kind) or kind for kind in alternatives]


_TOML_TYPES: Final[dict[type, tuple[type, ...]]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
    Sequence: (list,),
    Mapping: (dict,),
}
"""What TOML may give for each annotation."""


def _fits(value: object, hint: Any) -> bool:
    accepted = [kind for kind in _kinds(hint) if isinstance(value, _TOML_TYPES.get(kind, ()))]
    return accepted == [bool] if isinstance(value, bool) else bool(accepted)


def _type_words(hint: Any) -> str:
    words: dict[type, str] = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        Sequence: "a list",
        Mapping: "a table",
    }
    return " or ".join(words[kind] for kind in _kinds(hint) if kind in words)
