"""From timed answers to the figures of the speculation benchmark. Ratios are plain over drafting: more is better."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from workbench.bench.speculation_prompts import KINDS, SpeculationPrompt
from workbench.bench.speculation_runs import Answered, StepTime
from workbench.speculation.statistics import AcceptanceStatistics, expected_tokens

Rounds = Sequence[Mapping[str, Sequence[Answered]]]
"""Of each round, by name of what ran, the answers in the order of the prompts."""


def method_figures(
    method: str, rounds: Rounds | None, prompts: Sequence[SpeculationPrompt], num_draft_tokens: int
) -> dict[str, float | None]:
    """Return acceptance, measured and predicted speedup of one method; all None where it was not measured."""
    figures: dict[str, float | None] = {
        f"{method}_speedup_batch1": None,
        **{f"{method}_speedup_{kind}_batch1": None for kind in KINDS},
        f"{method}_predicted_speedup_batch1": None,
        f"{method}_first_position_acceptance": None,
        **{f"{method}_acceptance_position_{place}": None for place in range(1, num_draft_tokens + 1)},
        f"{method}_mean_acceptance_length": None,
        f"{method}_wasted_tokens_fraction": None,
        f"{method}_draft_cost": None,
        f"{method}_verify_cost": None,
        f"{method}_drafting_steps_fraction": None,
    }
    if rounds is None:
        return figures
    everything = range(len(prompts))
    figures[f"{method}_speedup_batch1"] = _speedup(rounds, method, everything)
    for kind in KINDS:
        chosen = [place for place in everything if prompts[place].kind == kind]
        figures[f"{method}_speedup_{kind}_batch1"] = _speedup(rounds, method, chosen)
    found = AcceptanceStatistics.of(draft for one in rounds for each in one[method] for draft in each.drafts)
    by_position = found.acceptance_by_position
    for place, share in enumerate(by_position, start=1):
        figures[f"{method}_acceptance_position_{place}"] = share
    if found.num_drafts:
        figures[f"{method}_first_position_acceptance"] = by_position[0]
        figures[f"{method}_mean_acceptance_length"] = found.mean_acceptance_length
        figures[f"{method}_wasted_tokens_fraction"] = found.num_wasted_tokens / found.num_draft_tokens
    return figures | _prediction(method, rounds, found)


def _speedup(rounds: Rounds, method: str, places: Sequence[int]) -> float:
    """Median over the rounds of the time of all answers."""
    return statistics.median(
        sum(one["none"][place].decode_s for place in places) / sum(one[method][place].decode_s for place in places)
        for one in rounds
    )


def _prediction(method: str, rounds: Rounds, found: AcceptanceStatistics) -> dict[str, float | None]:
    """Return what the formula says, from measured acceptance and measured times.

    A step that verifies k tokens yields (1 - a^(k + 1)) / (1 - a) and costs ck + v (arXiv 2211.17192); one without a
    draft, where a look-up finds nothing, yields one and costs what finding nothing costs. The mean is over the steps
    that were made, each with the k that it had.
    """
    plain_s = statistics.median(step.rest_s for step in _steps(rounds, "none"))
    steps = _steps(rounds, method)
    drafting = [step for step in steps if step.num_draft_tokens]
    if not drafting:
        return {f"{method}_drafting_steps_fraction": 0.0}
    num_tried = sum(min(k, accepted + 1) for k, accepted in _drafts(rounds, method))
    acceptance = found.num_accepted_tokens / num_tried
    draft_cost = sum(step.draft_s for step in drafting) / sum(step.num_draft_tokens for step in drafting) / plain_s
    verify_cost = statistics.median(step.rest_s for step in drafting) / plain_s
    num_tokens = sum(expected_tokens(acceptance, step.num_draft_tokens) for step in steps)
    cost = sum(draft_cost * step.num_draft_tokens + (verify_cost if step.num_draft_tokens else 1.0) for step in steps)
    return {
        f"{method}_predicted_speedup_batch1": num_tokens / cost,
        f"{method}_draft_cost": draft_cost,
        f"{method}_verify_cost": verify_cost,
        f"{method}_drafting_steps_fraction": len(drafting) / len(steps),
    }


def _steps(rounds: Rounds, method: str) -> list[StepTime]:
    return [step for one in rounds for each in one[method] for step in each.steps]


def _drafts(rounds: Rounds, method: str) -> list[tuple[int, int]]:
    return [draft for one in rounds for each in one[method] for draft in each.drafts if draft[0]]


def adaptive_figures(by_batch: Mapping[int, Rounds]) -> dict[str, float | None]:
    """Return for each batch size the median over the rounds of the time of all prompts, and the worst of everything.

    `adaptive_worst_prompt_ratio` is the least of all prompts' medians, at every batch size.
    """
    ratios: dict[str, float] = {}
    of_prompts: list[float] = []
    for batch_size, rounds in by_batch.items():
        ratios[f"adaptive_ratio_batch{batch_size}"] = statistics.median(
            total_s(one["none"], batch_size) / total_s(one["adaptive"], batch_size) for one in rounds
        )
        of_prompts += [
            statistics.median(one["none"][place].last_s / one["adaptive"][place].last_s for one in rounds)
            for place in range(len(rounds[0]["none"]))
        ]
    worst = {"adaptive_worst_ratio": min(ratios.values()), "adaptive_worst_prompt_ratio": min(of_prompts)}
    return {**ratios, **worst}


def total_s(answers: Sequence[Answered], batch_size: int) -> float:
    """Return the time of all answers, `batch_size` of which ran together: of each group, until its last token."""
    return sum(
        max(each.last_s for each in answers[start : start + batch_size]) for start in range(0, len(answers), batch_size)
    )
