"""Which ways of drafting an engine can offer, and why not the others."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.speculation.ngram import NgramProposer
from workbench.speculation.proposer import Proposer
from workbench.speculation_params import METHODS


@dataclass(frozen=True)
class Proposers:
    """Proposers by method, and the reasons of those that are missing."""

    available: dict[str, Proposer]
    unavailable: dict[str, str]

    @property
    def reasons(self) -> dict[str, str]:
        """Every method, with the reason why it cannot be used, empty when it can."""
        return {method: self.unavailable.get(method, "") for method in METHODS}


def make_proposers() -> Proposers:
    """Make the proposers of an engine."""
    available: dict[str, Proposer] = {"ngram": NgramProposer()}
    missing = {
        "draft_model": "this engine was started without a draft model",
        "eagle": "there is no trained head for this model",
        "hybrid": "there is no trained head for this model",
    }
    return Proposers(available, missing)
