"""Carries out what a beam search decides: beams fork, change places, and become answers."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.engine.beam_group import BeamGroup
from workbench.engine.beam_search import BeamSearch, Hypothesis
from workbench.engine.request import Request
from workbench.engine.roster import Roster
from workbench.telemetry.records import FinishReason, RequestStatus


def begin_beams(request: Request, max_model_len: int, eos_token_ids: Iterable[int]) -> None:
    """Make a request, and the partners that stand by it, the beams of one search."""
    params = request.sampling_params
    search = BeamSearch(
        params.beam_width,
        request.most_tokens(max_model_len) - request.num_prompt_tokens,
        params.length_penalty,
        params.early_stopping,
        params.stop_ids if params.ignore_eos else {*eos_token_ids, *params.stop_ids},
    )
    BeamGroup(search, (request, *request.partners))


def advance_beams(group: BeamGroup, roster: Roster) -> list[Request]:
    """Append a token to each beam that goes on; others give up their place. Return the answers at the end."""
    continuations = group.advance()
    if not continuations:
        return _finish(group, roster)
    group.requests[0].partners = []
    going_on = {parent.request_id for parent, _ in continuations}
    unused = [request for request in group.requests if request.request_id not in going_on]
    beams: list[Request] = []
    for parent, _ in continuations:
        beam = parent
        if parent in beams:
            beam = unused.pop(0)
            roster.fork(parent, beam)
        beams.append(beam)
    # Only now: a parent's context must not have its new token before all have parted from it.
    for beam, (_, continuation) in zip(beams, continuations, strict=True):
        beam.token_ids.append(continuation.token_id)
    for request in unused:
        if not request.is_parked:
            roster.park(request)
    group.members = beams
    return []


def _finish(group: BeamGroup, roster: Roster) -> list[Request]:
    """End a search: its best results become the answers, in the place of whatever the beams held."""
    answers = list(group.requests[: group.requests[0].sampling_params.n])
    for answer, hypothesis in zip(answers, group.best(len(answers)), strict=True):
        _take_over(answer, hypothesis)
        reason = FinishReason.STOP if hypothesis.is_stopped else FinishReason.LENGTH
        roster.finish(answer, RequestStatus.FINISHED, reason)
    for request in group.requests[len(answers) :]:
        roster.finish(request, RequestStatus.FINISHED, FinishReason.STOP)
    return answers


def _take_over(answer: Request, hypothesis: Hypothesis) -> None:
    answer.token_ids[answer.num_prompt_tokens :] = hypothesis.token_ids
    answer.beam_score = hypothesis.score
    if answer.text is not None:
        for token_id in hypothesis.token_ids:
            answer.text.push(token_id, False)
