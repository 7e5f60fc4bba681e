"""The speculation benchmark: its figures from made-up times, and the command on a tiny model."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.models.tiny_gguf import write_tiny_gguf
from workbench.bench.__main__ import main
from workbench.bench.speculation import _differing
from workbench.bench.speculation_figures import adaptive_figures, method_figures, total_s
from workbench.bench.speculation_prompts import KINDS, TEXTS, SpeculationPrompt
from workbench.bench.speculation_runs import Answered, StepTime
from workbench.speculation.statistics import predicted_speedup
from workbench.speculation_params import SpeculationParams

PROMPTS = [SpeculationPrompt(f"{kind}_1", kind, (1,)) for kind in KINDS]


def answered(decode_s: float, drafts=(), steps=(), tokens=(5, 6)) -> Answered:
    return Answered(tokens, 1.0, 1.0 + decode_s, ((0, 0), *drafts), tuple(steps))


def plain(decode_s: float) -> Answered:
    return answered(decode_s, steps=[StepTime(0, 0.0, 2.0)] * 4)


def drafting(decode_s: float) -> Answered:
    """Two drafts of two tokens, one accepted whole and one at its second token rejected."""
    return answered(decode_s, [(2, 2), (2, 1)], [StepTime(2, 0.4, 2.5)] * 2)


def test_prompts_are_24_different_ones_in_four_kinds():
    texts = [text for texts in TEXTS.values() for text in texts]

    assert tuple(TEXTS) == KINDS
    assert {kind: len(texts) for kind, texts in TEXTS.items()} == dict.fromkeys(KINDS, 6)
    assert Counter(texts).most_common(1)[0][1] == 1


def test_speedups_are_medians_over_rounds_of_whole_rounds():
    rounds = [
        {"none": [plain(t) for t in (2.0, 2.0, 2.0, 6.0)], "ngram": [drafting(t) for t in (1.0, 1.0, 2.0, 2.0)]},
        {"none": [plain(2.0)] * 4, "ngram": [drafting(2.0)] * 4},
        {"none": [plain(2.0)] * 4, "ngram": [drafting(4.0)] * 4},
    ]

    figures = method_figures("ngram", rounds, PROMPTS, 2)

    assert figures["ngram_speedup_batch1"] == 1.0
    assert figures["ngram_speedup_copy_batch1"] == 1.0
    assert method_figures("ngram", rounds[:1], PROMPTS, 2)["ngram_speedup_batch1"] == 2.0
    assert method_figures("ngram", rounds[:1], PROMPTS, 2)["ngram_speedup_copy_batch1"] == 3.0


def test_acceptance_is_told_by_position_and_the_formula_stands_beside_the_measurement():
    rounds = [{"none": [plain(2.0)] * 4, "eagle": [drafting(1.0)] * 4}]

    figures = method_figures("eagle", rounds, PROMPTS, 2)

    assert figures["eagle_first_position_acceptance"] == figures["eagle_acceptance_position_1"] == 1.0
    assert figures["eagle_acceptance_position_2"] == 0.5
    assert figures["eagle_mean_acceptance_length"] == 2.5
    assert figures["eagle_wasted_tokens_fraction"] == 0.25
    assert (figures["eagle_draft_cost"], figures["eagle_verify_cost"]) == pytest.approx((0.1, 1.25))
    assert figures["eagle_predicted_speedup_batch1"] == pytest.approx(predicted_speedup(0.75, 2, 0.1, 1.25))
    assert figures["eagle_drafting_steps_fraction"] == 1.0


def test_steps_without_a_draft_count_in_the_prediction():
    steps = [StepTime(2, 0.4, 2.5), StepTime(0, 0.4, 9.9)]
    rounds = [{"none": [plain(2.0)] * 4, "ngram": [answered(1.0, [(2, 2)], steps)] * 4}]

    figures = method_figures("ngram", rounds, PROMPTS, 2)

    assert figures["ngram_predicted_speedup_batch1"] == pytest.approx((3 + 1) / (0.2 + 1.25 + 1))
    assert figures["ngram_drafting_steps_fraction"] == 0.5


def test_method_that_was_not_measured_has_every_figure_and_none_of_them_a_number():
    measured = method_figures("eagle", [{"none": [plain(2.0)] * 4, "eagle": [drafting(1.0)] * 4}], PROMPTS, 2)
    missing = method_figures("eagle", None, PROMPTS, 2)

    assert list(missing) == list(measured)
    assert set(missing.values()) == {None}


def test_adaptive_ratios_are_the_least_of_all_sizes_and_prompts():
    def answers(*last_s):
        return [Answered((1,), 0.5, each, ()) for each in last_s]

    alone = [{"none": answers(2.0, 2.0), "adaptive": answers(2.0, 2.0)}]
    pairs = [{"none": answers(2.0, 3.0), "adaptive": answers(4.0, 4.0)}]

    assert adaptive_figures({1: alone, 8: pairs}) == {
        "adaptive_ratio_batch1": 1.0,
        "adaptive_ratio_batch8": 0.75,
        "adaptive_worst_ratio": 0.75,
        "adaptive_worst_prompt_ratio": 0.5,
    }
    assert total_s(answers(2.0, 3.0, 5.0), 2) == 8.0


def test_drafts_that_change_an_answer_fail_the_benchmark():
    same = {"none": [answered(1.0)], "ngram": [answered(1.0)]}
    other = {"none": [answered(1.0)], "ngram": [answered(1.0, tokens=(5, 7))]}

    assert _differing([same]) is None
    assert _differing([same, other]) == "answers differ from plain decoding: ngram"


@pytest.mark.parametrize("has_draft", [False, True])
def test_command_measures_every_method_that_is_there(tiny_model_path, tmp_path, has_draft, capfd):
    path = tmp_path / "tiny-long.gguf"
    write_tiny_gguf(path, max_model_len=4096)
    draft = ["--draft", str(path), "--draft-confidence", "0"] if has_draft else []  # a random model is never sure

    status = main(["speculation", "--quick", "--json", "--k", "3", *draft, "--engine", f"model={path}"])

    report = json.loads(capfd.readouterr().out)
    figures, settings = report["figures"], report["settings"]
    assert status == 0
    assert settings["prompts"] == ["chat_1", "code_1", "summary_1", "copy_1"]
    assert settings["adaptive_method"] == "ngram"
    assert settings["draft_confidence"] == (0 if has_draft else SpeculationParams().draft_confidence)
    assert settings["unavailable"]["eagle"] == "there is no trained head for tiny-long"
    assert ("draft_model" in settings["unavailable"]) != has_draft
    assert figures["eagle_first_position_acceptance"] is None and figures["eagle_speedup_batch1"] is None
    assert figures["ngram_speedup_copy_batch1"] > 0
    assert (figures["draft_model_speedup_batch1"] is not None) == has_draft
    if has_draft:  # the target itself: every token is accepted
        assert figures["draft_model_first_position_acceptance"] == 1.0
        assert figures["draft_model_mean_acceptance_length"] > 3
    ratios = [figures[f"adaptive_ratio_batch{size}"] for size in (1, 8, 24)]
    assert figures["adaptive_worst_ratio"] == min(ratios) > 0
    assert figures["adaptive_worst_prompt_ratio"] > 0


def test_confidence_out_of_range_is_refused(capfd):
    assert main(["speculation", "--quick", "--draft-confidence", "1"]) == 2
    assert "draft_confidence=1.0 is not valid: give a number from 0 to below 1" in capfd.readouterr().err


@pytest.mark.parametrize("option", [["--rounds", "0"], ["--max-tokens", "1"], ["--k", "17"]])
def test_options_out_of_range_are_refused(option, capfd):
    assert main(["speculation", "--quick", *option]) == 2
    assert "--k from 1 to 16" in capfd.readouterr().err
