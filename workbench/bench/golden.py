"""Recorded reference answers: what transformers said, for which model file, by which versions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workbench.bench.reference import TIE_TOLERANCE, ReferenceAnswer
from workbench.bench.report import ROOT
from workbench.errors import ConfigurationError

GOLDEN_PATH: Final = ROOT / "tests" / "golden" / "smollm2_greedy.json"


@dataclass(frozen=True)
class GoldenCase:
    """One prompt and the reference's greedy answer to it."""

    name: str
    prompt_token_ids: tuple[int, ...]
    answer: ReferenceAnswer


@dataclass(frozen=True)
class Golden:
    """All cases, and what they were made with."""

    model_sha256: str
    made_with: dict[str, str]
    """Library → version."""
    cases: tuple[GoldenCase, ...]

    def check_model(self, path: Path) -> None:
        """Refuse answers that belong to another model file.

        Raises:
            ConfigurationError: the file's hash is not the recorded one.
        """
        digest = sha256_of(path)
        if digest != self.model_sha256:
            raise ConfigurationError(
                f"the recorded answers belong to the model file with SHA-256 {self.model_sha256}, but {path.name} has "
                f"{digest}: record them anew with `python -m workbench.bench exactness --record`"
            )


def sha256_of(path: Path) -> str:
    """Return the file's SHA-256 in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_golden(golden: Golden, path: Path) -> None:
    """Write the answers as JSON, one case a line, so that a change reads well as a diff."""
    head = {
        "made_by": "python -m workbench.bench exactness --record",
        "made_with": golden.made_with,
        "model_sha256": golden.model_sha256,
        "tie_tolerance": TIE_TOLERANCE,
    }
    cases = ",\n".join("  " + json.dumps(_to_plain(case)) for case in golden.cases)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "cases": [\n{cases}\n ]\n}}\n', encoding="utf-8")


def load_golden(path: Path = GOLDEN_PATH) -> Golden:
    """Read what `save_golden` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    cases = tuple(
        GoldenCase(
            name=case["name"],
            prompt_token_ids=tuple(case["prompt_token_ids"]),
            answer=ReferenceAnswer(
                tuple(case["answer_token_ids"]), {int(i): tuple(tokens) for i, tokens in case["ties"].items()}
            ),
        )
        for case in data["cases"]
    )
    return Golden(data["model_sha256"], data["made_with"], cases)


def _to_plain(case: GoldenCase) -> dict[str, Any]:
    return {
        "name": case.name,
        "prompt_token_ids": case.prompt_token_ids,
        "answer_token_ids": case.answer.token_ids,
        "ties": case.answer.ties,
    }
