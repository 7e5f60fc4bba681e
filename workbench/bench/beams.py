"""Beam search against transformers: the recorded answers, and how ours are compared with them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from workbench.bench.golden import Golden
from workbench.bench.reference import Beam, ReferenceModel
from workbench.bench.report import ROOT
from workbench.sampling_params import SamplingParams

if TYPE_CHECKING:
    from workbench.llm import LLM

BEAM_GOLDEN_PATH: Final = ROOT / "tests" / "golden" / "smollm2_beams.json"
PROMPTS: Final = ("raw_story", "raw_digits", "raw_code", "raw_257_tokens", "chat_short", "chat_turns")
"""Names in `exactness_prompts`. Beams of the chats end with an end token, those of the others at the length limit."""
WIDTHS: Final = (2, 4)
NUM_NEW_TOKENS: Final = 24
SCORE_TOLERANCE: Final = 1e-3


@dataclass(frozen=True)
class BeamCase:
    """One prompt, and what transformers' beam search of one width answers to it."""

    name: str
    prompt_token_ids: tuple[int, ...]
    width: int
    beams: tuple[Beam, ...]
    """All of them, best first."""

    def __str__(self) -> str:
        return f"{self.name}-{self.width}beams"

    @property
    def params(self) -> SamplingParams:
        """What our engine is asked for."""
        return SamplingParams(use_beam_search=True, beam_width=self.width, n=self.width, max_tokens=NUM_NEW_TOKENS)


def derive_cases(
    reference: ReferenceModel, prompts: Mapping[str, Sequence[int]], end_token_ids: Iterable[int]
) -> tuple[BeamCase, ...]:
    """Let transformers search, one prompt after the other. Takes minutes."""
    ends = tuple(end_token_ids)
    return tuple(
        BeamCase(name, tuple(prompts[name]), width, reference.beams(prompts[name], width, NUM_NEW_TOKENS, ends))
        for name in PROMPTS
        for width in WIDTHS
    )


def compare_all(llm: LLM, cases: Sequence[BeamCase]) -> dict[str, list[str]]:
    """Run all searches together on our engine; return of each what differs."""
    outputs = llm.generate([case.prompt_token_ids for case in cases], [case.params for case in cases])
    found = (
        [Beam(each.token_ids, math.nan if each.beam_score is None else each.beam_score) for each in output.outputs]
        for output in outputs
    )
    return {str(case): differences(case, beams) for case, beams in zip(cases, found, strict=True)}


def differences(case: BeamCase, found: Sequence[Beam]) -> list[str]:
    """Return in words where beams are not the reference's: number, tokens, order, or scores."""
    if len(found) != len(case.beams):
        return [f"{case}: {len(found)} answers instead of {len(case.beams)}"]
    words = []
    for index, (beam, expected) in enumerate(zip(found, case.beams, strict=True)):
        if beam.token_ids != expected.token_ids:
            words.append(f"{case}@{index}: {list(beam.token_ids)} instead of {list(expected.token_ids)}")
        elif not abs(beam.score - expected.score) <= SCORE_TOLERANCE:
            words.append(f"{case}@{index}: score {beam.score} instead of {expected.score}")
    return words


def save_cases(cases: Sequence[BeamCase], golden: Golden, path: Path = BEAM_GOLDEN_PATH) -> None:
    """Write the answers as JSON, one case a line. `golden` tells what they were made with."""
    head = {
        "made_by": "python -m workbench.bench exactness --record",
        "made_with": golden.made_with,
        "model_sha256": golden.model_sha256,
        "score_tolerance": SCORE_TOLERANCE,
    }
    lines = ",\n".join("  " + json.dumps(_to_plain(case)) for case in cases)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "cases": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def load_cases(path: Path = BEAM_GOLDEN_PATH) -> tuple[BeamCase, ...]:
    """Read what `save_cases` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return tuple(
        BeamCase(
            case["name"],
            tuple(case["prompt_token_ids"]),
            case["width"],
            tuple(Beam(tuple(beam["token_ids"]), beam["score"]) for beam in case["beams"]),
        )
        for case in data["cases"]
    )


def _to_plain(case: BeamCase) -> dict[str, object]:
    return {
        "name": case.name,
        "width": case.width,
        "prompt_token_ids": case.prompt_token_ids,
        "beams": [{"token_ids": beam.token_ids, "score": beam.score} for beam in case.beams],
    }
