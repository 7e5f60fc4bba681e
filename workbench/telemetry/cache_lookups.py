"""How much of the admitted contexts the prefix cache held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from workbench.telemetry.records import StepRecord


@dataclass(frozen=True)
class CacheLookups:
    """Tokens of the contexts admitted so far. One that comes back after a preemption counts again."""

    num_looked_up_tokens: int = 0
    num_cached_tokens: int = 0
    """Those of them that were found and not computed."""

    def after(self, record: StepRecord) -> CacheLookups:
        """Return the same after one more step."""
        return CacheLookups(
            self.num_looked_up_tokens + record.num_looked_up_tokens, self.num_cached_tokens + record.num_cached_tokens
        )


NO_LOOKUPS: Final = CacheLookups()
"""Before the first context is admitted."""
