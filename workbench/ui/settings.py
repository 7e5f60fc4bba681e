"""Engine settings of the page as plain data: what the sidebar holds, what differs from the engine, what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from workbench.config import LIVE_FIELDS, EngineConfig
from workbench.engine.service import EngineService
from workbench.errors import ConfigurationError
from workbench.ui.texts import ENGLISH, Texts

ENGINE_FIELDS: Final = (
    "block_size",
    "num_blocks",
    "max_num_batched_tokens",
    "max_num_seqs",
    "enable_prefix_caching",
    "scheduling_policy",
    "admission_policy",
    "preemption_mode",
    "swap_space",
    "kv_layout",
    "kv_placement",
)
"""Engine settings in the sidebar, in the order of its controls."""
TEXT_FIELDS: Final = ("scheduling_policy", "admission_policy", "preemption_mode", "kv_layout", "kv_placement")
FRACTION_FIELDS: Final = ("swap_space",)
"""Numbers that need not be whole."""
RELOAD_DRAIN_S: Final = 30.0


@dataclass(frozen=True)
class EngineChanges:
    """Engine settings that differ from the running engine's."""

    values: dict[str, Any]
    """Field → wanted value, changed fields only."""

    @property
    def needs_reload(self) -> bool:
        """Whether at least one of them cannot be taken over between two steps."""
        return any(name not in LIVE_FIELDS for name in self.values)

    def button_label(self, say: Texts = ENGLISH) -> str:
        """What the Apply button says."""
        count = len(self.values)
        if not count:
            return say("Apply (no changes)")
        how = say("reload") if self.needs_reload else say("live")
        if count == 1:
            return say("Apply (1 change, {how})", how=how)
        return say("Apply ({count} changes, {how})", count=count, how=how)


def current_engine_values(service: EngineService) -> dict[str, Any]:
    """Return the running engine's values of the sidebar's settings; None where it is not known yet."""
    config = service.config
    values = {name: getattr(config, name) for name in ENGINE_FIELDS}
    if values["num_blocks"] is None:  # derived from a byte budget: say what came of it
        values["num_blocks"] = service.status.num_blocks or None
    return values


def engine_changes(service: EngineService, *wanted: float | str | None) -> EngineChanges:
    """Compare the sidebar's values, in the order of `ENGINE_FIELDS`, with the running engine's."""
    current = current_engine_values(service)
    typed = typed_values(wanted)
    return EngineChanges({name: value for name, value in typed.items() if value != current[name]})


def typed_values(wanted: Sequence[float | str | bool | None]) -> dict[str, Any]:
    """Return the sidebar's values by field, in the order of `ENGINE_FIELDS`; fields left empty are not there."""
    given = dict(zip(ENGINE_FIELDS, wanted, strict=True))
    return {name: _typed(name, value) for name, value in given.items() if value is not None and value != ""}


def _typed(name: str, value: float | str | bool) -> float | str | bool:
    if isinstance(value, bool) or name in TEXT_FIELDS:
        return value
    return float(value) if name in FRACTION_FIELDS else int(value)


def apply_changes(service: EngineService, changes: EngineChanges) -> EngineConfig:
    """Bring the changes into force and return the new configuration. Blocks while an engine reloads.

    Raises:
        ConfigurationError: a value is out of range or does not fit the machine; the old engine goes on.
        WorkbenchError: the reload failed otherwise; the old engine goes on.
    """
    config = dataclasses.replace(service.config, **changes.values)
    if "num_blocks" in changes.values and service.config.kv_cache_bytes is not None:
        config = dataclasses.replace(config, kv_cache_bytes=None)
    if changes.needs_reload:
        service.reload(config, drain_s=RELOAD_DRAIN_S)
    elif changes.values:
        service.set_limits(**changes.values)
    return config


def apply_note(service: EngineService, changes: EngineChanges, say: Texts = ENGLISH) -> str:
    """Say what Apply will do, and to whom."""
    if not changes.values:
        return ""
    try:
        dataclasses.replace(service.config, **changes.values)
    except ConfigurationError as error:
        return str(error)
    if not changes.needs_reload:
        return say("Taken over between two steps; nobody is interrupted.")
    words = _whom_it_interrupts(service, say)
    if changes.values.get("kv_layout") != "contiguous":
        return words
    return f"{words} {say('In the contiguous layout the prefix cache and beam search are not active.')}"


def _whom_it_interrupts(service: EngineService, say: Texts) -> str:
    record = service.recorder.latest
    running, waiting = (record.num_running, record.num_waiting) if record is not None else (0, 0)
    if not running + waiting:
        return say("The engine reloads; no request is under way.")
    count, seconds = running + waiting, f"{RELOAD_DRAIN_S:.0f}"
    if count == 1:
        return say(
            "The engine reloads. 1 request under way gets {seconds} s to finish; the rest ends with engine_reload.",
            seconds=seconds,
        )
    return say(
        "The engine reloads. {count} requests under way get {seconds} s to finish; the rest ends with engine_reload.",
        count=count,
        seconds=seconds,
    )
