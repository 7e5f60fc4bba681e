"""Beam search on the real model equals transformers' `generate(num_beams=…)`: tokens, order and scores."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from workbench import LLM
from workbench.bench.beams import (
    BEAM_GOLDEN_PATH,
    NUM_NEW_TOKENS,
    PROMPTS,
    SCORE_TOLERANCE,
    WIDTHS,
    BeamCase,
    compare_all,
    load_cases,
)
from workbench.bench.golden import load_golden
from workbench.bench.prompts import exactness_prompts
from workbench.bench.reference import ReferenceModel
from workbench.config import DEFAULT_MODEL
from workbench.models.gguf_file import GGUFFile
from workbench.models.tokenizer import Tokenizer
from workbench.telemetry.records import StepRecord, TransferKind

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cases(default_model_path: Path) -> tuple[BeamCase, ...]:
    golden = load_golden()
    golden.check_model(default_model_path)
    assert json.loads(BEAM_GOLDEN_PATH.read_text(encoding="utf-8"))["model_sha256"] == golden.model_sha256
    return load_cases()


def search(cases: tuple[BeamCase, ...], **settings: object) -> tuple[list[str], list[StepRecord]]:
    """Run all searches together; return what differs from the reference, and the records of the steps."""
    records: list[StepRecord] = []
    with LLM(DEFAULT_MODEL, check_integrity=True, num_threads=1, **settings) as llm:
        llm.service.subscribe(records.append)
        found = compare_all(llm, cases)
        assert all(block.ref_count == 0 for block in llm.service.pool_snapshot().blocks)
    return list(itertools.chain(*found.values())), records


def test_recorded_beams_are_of_six_prompts_and_some_end_with_an_end_token(cases: tuple[BeamCase, ...]):
    assert [(case.name, case.width) for case in cases] == [(name, width) for name in PROMPTS for width in WIDTHS]
    assert len(PROMPTS) == 6
    assert [len(case.beams) for case in cases] == [2, 4] * 6
    ended = {case.name for case in cases for beam in case.beams if len(beam.token_ids) < NUM_NEW_TOKENS}
    assert ended == {"chat_short", "chat_turns"}
    assert {beam.token_ids[-1] for case in cases if case.name in ended for beam in case.beams} == {2}
    assert len({beam.token_ids for case in cases for beam in case.beams}) > 24


def test_recorded_prompts_are_what_our_tokenizer_makes_of_them(cases: tuple[BeamCase, ...], default_model_path: Path):
    prompts = exactness_prompts(Tokenizer(GGUFFile(default_model_path).metadata))

    assert all(list(case.prompt_token_ids) == prompts[case.name] for case in cases)


def test_beams_equal_the_reference(cases: tuple[BeamCase, ...]):
    found, records = search(cases)

    assert found == []
    copied = [transfer.kind for record in records for transfer in record.transfers]
    assert set(copied) == {TransferKind.COPY}, "beams that part within a block copy it"


@pytest.mark.parametrize("preemption_mode", ["recompute", "swap"])
def test_beams_equal_the_reference_when_they_are_preempted(cases: tuple[BeamCase, ...], preemption_mode: str):
    """The larger search needs 16 shared blocks and up to 3 for each beam: the smaller does not fit beside it."""
    crowded = tuple(case for case in cases if case.width == 4 and case.name in ("raw_story", "raw_257_tokens"))
    found, records = search(crowded, num_blocks=26, preemption_mode=preemption_mode, enable_prefix_caching=False)

    assert found == []
    preempted = Counter(e.request_id for record in records for e in record.explanations if e.decision == "preempted")
    assert preempted, "nothing was preempted, so this shows nothing"
    assert any(request_id.endswith(".1") for request_id in preempted), "beams that have parted must have been preempted"
    kinds = {transfer.kind for record in records for transfer in record.transfers}
    assert (TransferKind.SWAP_IN in kinds) == (TransferKind.SWAP_OUT in kinds) == (preemption_mode == "swap")


@pytest.mark.slow_reference
def test_recorded_beams_are_still_what_transformers_says(
    cases: tuple[BeamCase, ...], reference_model: ReferenceModel, default_model_path: Path
):
    """One of them is derived live: four beams, which end with an end token."""
    ends = Tokenizer(GGUFFile(default_model_path).metadata).eos_token_ids
    (case,) = (case for case in cases if (case.name, case.width) == ("chat_short", 4))
    beams = reference_model.beams(case.prompt_token_ids, case.width, NUM_NEW_TOKENS, ends)

    assert [beam.token_ids for beam in beams] == [beam.token_ids for beam in case.beams]
    assert [beam.score for beam in beams] == pytest.approx([beam.score for beam in case.beams], abs=SCORE_TOLERANCE)
