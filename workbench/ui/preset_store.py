"""Presets of a page: those read at the start, and those that visitors save while it runs.

Saving writes `NAME.toml` beside the presets that come with the project. The text is validated before
anything is written, and the file appears whole or not at all.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tomlkit

from workbench.errors import ConfigurationError
from workbench.presets import SAMPLING_FIELDS, SPECULATION_FIELDS, Preset, parse_preset
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import NO_SPECULATION, SpeculationParams

BUILT_IN: Final = ("default", "before-paging", "long-context", "many-users", "swapping", "tiny-memory")
"""Names of the presets that come with the project; they are never overwritten."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}")


class PresetStore:
    """The presets of one page by name. Used from the event loop only."""

    def __init__(self, presets: Mapping[str, Preset], directory: Path | None = None) -> None:
        """Start with `presets`; new ones go to `directory`, or cannot be saved when that is None."""
        self._presets = dict(presets)
        self._directory = directory

    @property
    def can_save(self) -> bool:
        """Whether visitors may save presets."""
        return self._directory is not None

    @property
    def choices(self) -> list[tuple[str, str]]:
        """(title, name) of each preset. A title that two share is told apart by its name."""
        titles = [preset.title for preset in self._presets.values()]
        return [
            (preset.title if titles.count(preset.title) == 1 else f"{preset.title} ({name})", name)
            for name, preset in self._presets.items()
        ]

    def __getitem__(self, name: str) -> Preset:
        return self._presets[name]

    def save(
        self,
        name: str,
        title: str,
        description: str,
        engine: Mapping[str, Any],
        sampling: SamplingParams,
        speculation: SpeculationParams = NO_SPECULATION,
    ) -> bool:
        """Write a preset and take it up. Returns whether it replaced one that was saved before.

        Comments in a file that is replaced are kept.

        Raises:
            ConfigurationError: the name is not allowed or belongs to a built-in preset, a value is
                wrong, or the file cannot be written; nothing has changed then.
        """
        if self._directory is None:
            raise ConfigurationError("presets cannot be saved here: this page is open to other machines")
        check_name(name)
        path = self._directory / f"{name}.toml"
        is_old = path.exists()
        try:
            document = tomlkit.parse(path.read_text(encoding="utf-8")) if is_old else tomlkit.document()
            document["title"] = title.strip() or name
            document["description"] = description.strip() or "Saved from the page."
            _fill(document, "engine", engine)
            _fill(document, "sampling", _as_toml(sampling))
            _fill(document, "speculation", _drafting_as_toml(speculation))
            text = tomlkit.dumps(document)
            preset = parse_preset(path, text)
            _write_whole(path, text)
        except (OSError, tomlkit.exceptions.TOMLKitError) as error:
            raise ConfigurationError(f"preset {path.name} cannot be written: {error}") from error
        self._presets[name] = preset
        return is_old


def check_name(name: str) -> None:
    """Raise ConfigurationError unless a preset of this name may be written."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"preset name {name!r} is not allowed: give 1 to 40 letters, digits and dashes, not beginning with a dash"
        )
    if name.lower() in BUILT_IN:
        raise ConfigurationError(f"preset name {name!r} belongs to a built-in preset: choose another one")


def is_local(host: str | None) -> bool:
    """Whether a visitor's address is this machine's own; one that came through a proxy is not."""
    try:
        return host is not None and ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _fill(document: tomlkit.TOMLDocument, table: str, values: Mapping[str, Any]) -> None:
    """Make a table hold these values; a table that neither is there nor would hold any stays away."""
    if not isinstance(document.get(table), Mapping):
        if not values:
            return
        document[table] = tomlkit.table()
    target: Any = document[table]
    for key in [key for key in target if key not in values]:
        del target[key]
    for key, value in values.items():
        if target.get(key) != value:
            target[key] = value


def _drafting_as_toml(params: SpeculationParams) -> dict[str, Any]:
    """What differs from an empty table's meaning."""
    initial = SpeculationParams()
    plain = {name: getattr(params, name) for name in SPECULATION_FIELDS}
    return {name: value for name, value in plain.items() if value != getattr(initial, name)}


def _as_toml(params: SamplingParams) -> dict[str, Any]:
    """What differs from an empty table's meaning, and the main settings in any case. TOML has no null."""
    plain = {name: getattr(params, name) for name in SAMPLING_FIELDS}
    plain |= {"stop": list(params.stop_texts), "bad_words": list(params.bad_texts)}
    plain["logit_bias"] = {str(token_id): value for token_id, value in params.logit_bias.items()}
    initial = SamplingParams()
    shown = ("temperature", "top_p", "top_k")
    return {
        name: value
        for name, value in plain.items()
        if name in shown or (value not in (None, [], {}) and (name == "max_tokens" or value != getattr(initial, name)))
    }


def _write_whole(path: Path, text: str) -> None:
    """Write beside the place and rename: a reader sees the old file or the new one, never half of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
