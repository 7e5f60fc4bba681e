"""An inference workbench: a paged, continuously batched LLM engine that shows its work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.llm import LLM
    from workbench.sampling_params import SamplingParams
    from workbench.speculation_params import SpeculationParams

__all__ = ["LLM", "SamplingParams", "SpeculationParams"]


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that `import workbench` costs nothing."""
    if name == "LLM":
        from workbench.llm import LLM

        return LLM
    if name == "SamplingParams":
        from workbench.sampling_params import SamplingParams

        return SamplingParams
    if name == "SpeculationParams":
        from workbench.speculation_params import SpeculationParams

        return SpeculationParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
