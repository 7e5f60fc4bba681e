"""The training of a head, from where its last checkpoint left it.

A run that was killed and started again ends with the same weights as one that was not: the order of the
texts is a function of seed and epoch, and a checkpoint holds all that the next step depends on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from workbench.errors import ConfigurationError
from workbench.speculation.train.examples import Examples
from workbench.speculation.train.head_module import TrainingHead
from workbench.speculation.train.loss import Objective, loss_of

CHECKPOINT: Final = "checkpoint.pt"


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a head is trained."""

    num_epochs: int = 1
    batch_tokens: int = 1024
    """Drafted tokens of a step, at least."""
    learning_rate: float = 5e-4
    """The highest, reached after the warm-up; from there it falls to a twentieth, as a cosine does."""
    warm_up: float = 0.05
    """Share of all steps."""
    weight_decay: float = 0.01
    """Of matrices; norms are left alone."""
    max_gradient_norm: float = 1.0
    dropout: float = 0.0
    """See `TrainingHead.dropout`."""
    seed: int = 0
    objective: Objective = field(default_factory=Objective)


@dataclass(frozen=True)
class Checkpoint:
    """What a run has come to."""

    step: int
    """Steps done."""
    head: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    facts: dict[str, Any]
    """What the run depends on: data, model, settings. A run with others does not go on from here."""
    reports: list[dict[str, Any]]
    """What was measured on the way."""
    vocabulary: torch.Tensor
    """int64 [V]"""


class Training:
    """One run, which lives in a folder."""

    def __init__(
        self,
        head: TrainingHead,
        examples: Examples,
        settings: TrainingSettings,
        folder: Path,
        facts: Mapping[str, Any],
    ) -> None:
        """Take up the checkpoint of the folder, if there is one: `head` then gets its weights.

        Raises:
            ConfigurationError: the folder holds a run on other data, or with other settings.
        """
        self._head, self._examples, self._settings, self._folder = head, examples, settings, folder
        head.dropout = settings.dropout
        self._facts = {**facts, "settings": asdict(settings)}
        self._order = [
            numbers
            for epoch in range(settings.num_epochs)
            for numbers in examples.order(settings.seed, epoch, settings.batch_tokens)
        ]
        matrices, norms = (
            [parameter for parameter in head.parameters() if (parameter.ndim > 1) == is_matrix]
            for is_matrix in (True, False)
        )
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": norms, "weight_decay": 0.0}],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            foreach=True,
        )
        self.step = 0
        self.reports: list[dict[str, Any]] = []
        if (folder / CHECKPOINT).exists():
            self._resume(read_checkpoint(folder))

    @property
    def num_steps(self) -> int:
        """Steps of the whole run."""
        return len(self._order)

    def _resume(self, found: Checkpoint) -> None:
        if found.facts != self._facts:
            raise ConfigurationError(
                f"{self._folder} holds a training with {_differences(found.facts, self._facts)}: name another --out"
            )
        self._head.load_state_dict(found.head)
        self._optimizer.load_state_dict(found.optimizer)
        self.step, self.reports = found.step, found.reports

    def run(self, after_step: Callable[[float, int], None], checkpoint_every_s: float) -> None:
        """Train to the end, with a checkpoint now and then and at the end.

        after_step: called with the step's loss and drafted tokens; `step` counts it already.
        """
        saved_s = time.monotonic()
        while self.step < self.num_steps:
            batch = self._examples.batch(self._order[self.step])
            torch.manual_seed(self._settings.seed * self.num_steps + self.step)  # what is left out
            loss = self._update(loss_of(self._head, batch, self._settings.objective))
            self.step += 1
            after_step(loss, len(batch.best))
            if self.step == self.num_steps or time.monotonic() - saved_s >= checkpoint_every_s:
                self.save()
                saved_s = time.monotonic()

    def _update(self, loss: torch.Tensor) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * self._rate()
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._head.parameters(), self._settings.max_gradient_norm)
        self._optimizer.step()
        return float(loss.detach())

    def _rate(self) -> float:
        """Share of the highest learning rate in the next step."""
        warm_up = math.ceil(self._settings.warm_up * self.num_steps)
        if self.step < warm_up:
            return (self.step + 1) / warm_up
        progress = (self.step - warm_up) / max(1, self.num_steps - warm_up)
        return 0.05 + 0.95 * (1 + math.cos(math.pi * progress)) / 2

    def save(self) -> None:
        """Write the checkpoint, so that there is always a whole one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._folder / "checkpoint.tmp"
        values = {
            "step": self.step,
            "head": self._head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "facts": self._facts,
            "reports": self.reports,
            "vocabulary": self._head.vocabulary,
        }
        torch.save(values, unfinished)
        unfinished.replace(self._folder / CHECKPOINT)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return the last checkpoint of a run.

    Raises:
        ConfigurationError: there is none in this folder.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        raise ConfigurationError(f"there is no {CHECKPOINT} in {folder}: name what `train --out` named")
    return Checkpoint(**torch.load(path, weights_only=True))


def _differences(found: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    names = [name for name in found.keys() | own.keys() if found.get(name) != own.get(name)]
    return ", ".join(f"{name} {found.get(name)!r} instead of {own.get(name)!r}" for name in sorted(names))
