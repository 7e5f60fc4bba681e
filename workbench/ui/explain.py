"""The scheduler's decisions in words. Every sentence about a decision stands here, and nowhere else.

`explain` turns one record into one sentence with the numbers that the rule compared:
`waiting: needs 12 blocks, 9 are free`. It is pure: records in, text out, in the language that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from workbench.telemetry.records import CacheMiss, Decision, Explanation, Reason
from workbench.ui import numbers
from workbench.ui.texts import ENGLISH, Texts

_OPENINGS: Final[Mapping[Decision, str]] = {
    Decision.ADMITTED: "admitted: {rule}",
    Decision.RESUMED: "resumed: {rule}",
    Decision.CHUNKED: "computed in part: {rule}",
    Decision.DEFERRED: "waiting: {rule}",
    Decision.PREEMPTED: "preempted: {rule}",
    Decision.FAILED: "failed: {rule}",
}


def explain(explanation: Explanation, say: Texts = ENGLISH) -> str:
    """Return a decision and its rule as one sentence. A number that the record lacks is shown as a dash."""
    rule = _RULES[explanation.reason](say, explanation)
    if explanation.decision is Decision.PREEMPTED:
        rule += _aftermath(say, explanation)
    return say(_OPENINGS[explanation.decision], rule=rule)


def explain_miss(miss: CacheMiss | None, differs_at: int | None = None, say: Texts = ENGLISH) -> str:
    """Return why no more of a context was found in the prefix cache; empty when nothing was missing.

    `differs_at` is the first position, from 0, whose token is not the cached one.
    """
    match miss:
        case None:
            return ""
        case CacheMiss.DISABLED:
            return say("prefix cache off")
        case CacheMiss.BYPASSED:
            return say("cache bypassed for prompt logprobs")
        case CacheMiss.SHORTER_THAN_BLOCK:
            return say("shorter than a block")
        case CacheMiss.EVICTED:
            return say("the next block was evicted")
        case CacheMiss.DIFFERS:
            if differs_at == 0:
                return say("nothing cached begins like it")
            return say("differs") if differs_at is None else say("differs at token {position}", position=differs_at)


# ------------------------------------------------------------------------------- the rules


def _room(say: Texts, e: Explanation) -> str:
    swapped, cached = e.numbers.get("swapped_blocks"), e.numbers.get("cached_tokens")
    parts = [_needs(say, e)]
    if swapped:
        parts.append(say("{blocks} brought back from host memory", blocks=_blocks(say, swapped)))
    if cached:
        parts.append(say("{tokens} found in the cache", tokens=_tokens(say, cached)))
    parts.append(say("{tokens} computed in this step", tokens=_tokens(say, e.numbers.get("tokens"))))
    return say("; ").join(parts)


def _past_head(say: Texts, e: Explanation) -> str:
    count = e.numbers.get("overtaken")
    earlier = say("1 earlier request") if count == 1 else say("{count} earlier requests", count=count)
    return say("before {earlier} that cannot start yet; {room}", earlier=earlier, room=_room(say, e))


def _more_urgent(say: Texts, e: Explanation) -> str:
    own, urgent = e.numbers.get("priority"), e.numbers.get("urgent_priority")
    words = say(
        "{cause} is more urgent (priority {urgent} against {own})", cause=_cause(say, e), urgent=urgent, own=own
    )
    if e.decision is Decision.PREEMPTED:
        return say("{urgent} and {needed}", urgent=words, needed=_needed(say, e))
    tokens, wanted = e.numbers.get("tokens"), _tokens(say, e.numbers.get("wanted_tokens"))
    return say("{urgent}: {tokens} of {wanted} are left of this step", urgent=words, tokens=tokens, wanted=wanted)


def _token_budget(say: Texts, e: Explanation) -> str:
    tokens, budget = e.numbers.get("tokens"), e.numbers.get("budget")
    wanted = _tokens(say, e.numbers.get("wanted_tokens"))
    if tokens:
        return say(
            "{tokens} of {wanted} fit into the step's budget of {budget}", tokens=tokens, wanted=wanted, budget=budget
        )
    return say("{wanted} to compute, the step's budget of {budget} is spent", wanted=wanted, budget=budget)


def _no_free_blocks(say: Texts, e: Explanation) -> str:
    return _cause_needed(say, e) if e.decision is Decision.PREEMPTED else _needs(say, e)


def _no_free_run(say: Texts, e: Explanation) -> str:
    run = say("the longest run is {count}", count=e.numbers.get("longest_run"))
    if e.decision is Decision.PREEMPTED:
        return say("{needed}, {run}", needed=_cause_needed(say, e), run=run)
    needed, free = e.numbers.get("needed_blocks"), _are_free(say, e.numbers.get("free_blocks"))
    blocks = say("1 consecutive block") if needed == 1 else say("{count} consecutive blocks", count=needed)
    return say("needs {blocks}, {free}, {run}", blocks=blocks, free=free, run=run)


def _max_num_seqs(say: Texts, e: Explanation) -> str:
    running, most, wanted = (e.numbers.get(name) for name in ("running", "max_num_seqs", "wanted_seqs"))
    sequences = say("1 sequence") if most == 1 else say("{count} sequences", count=most)
    words = say("{running} of {sequences} run", running=running, sequences=sequences)
    return say("{words}, this request brings {count}", words=words, count=wanted) if wanted else words


def _behind_head(say: Texts, e: Explanation) -> str:
    return say("{requests} before it in the queue", requests=_requests(say, e.numbers.get("position")))


def _preempted_this_step(say: Texts, e: Explanation) -> str:
    requests = _requests(say, e.numbers.get("num_preempted"))
    return say("{requests} had to make room in this step, so nobody starts", requests=requests)


def _outgrew_pool(say: Texts, e: Explanation) -> str:
    needed, total = _blocks(say, e.numbers.get("needed_blocks")), e.numbers.get("num_blocks")
    return say("needs {blocks}, the whole pool has {total}", blocks=needed, total=total)


def _standstill(say: Texts, e: Explanation) -> str:
    needed = _cause_needed(say, e)
    return say("every running request waited for beams that do not fit; {needed}", needed=needed)


def _requested(say: Texts, e: Explanation) -> str:
    count = e.numbers.get("freed_blocks")
    freed = say("1 block was given back") if count == 1 else say("{count} blocks were given back", count=count)
    return say("somebody asked for it; {freed}", freed=freed)


_RULES: Final[Mapping[Reason, Callable[[Texts, Explanation], str]]] = {
    Reason.ROOM: _room,
    Reason.PAST_HEAD: _past_head,
    Reason.MORE_URGENT: _more_urgent,
    Reason.TOKEN_BUDGET: _token_budget,
    Reason.NO_FREE_BLOCKS: _no_free_blocks,
    Reason.NO_FREE_RUN: _no_free_run,
    Reason.MAX_NUM_SEQS: _max_num_seqs,
    Reason.BEHIND_HEAD: _behind_head,
    Reason.PREEMPTED_THIS_STEP: _preempted_this_step,
    Reason.OUTGREW_POOL: _outgrew_pool,
    Reason.STANDSTILL: _standstill,
    Reason.REQUESTED: _requested,
}


def _aftermath(say: Texts, e: Explanation) -> str:
    """What became of the context of a preempted request, and which estimates decided that."""
    swapped, room = e.numbers.get("swapped_blocks"), e.numbers.get("free_swap_blocks")
    swap_us, recompute_us = e.numbers.get("swap_us"), e.numbers.get("recompute_us")
    if swapped:
        estimates = _estimates(say, swap_us, recompute_us)
        kept = ", ".join(part for part in (_blocks(say, swapped), estimates) if part)
        return say("; kept in host memory ({kept})", kept=kept)
    if room == 1:
        return say("; computed again later, since only 1 block of the swap space is free")
    if room is not None:
        return say("; computed again later, since only {count} blocks of the swap space are free", count=room)
    estimates = _estimates(say, recompute_us, swap_us)
    again = say("; computed again later")
    return f"{again} ({estimates})" if estimates else again


def _estimates(say: Texts, chosen_us: int | None, other_us: int | None) -> str:
    if chosen_us is None or other_us is None:
        return ""
    chosen, other = numbers.milliseconds(chosen_us / 1e6), numbers.milliseconds(other_us / 1e6)
    return say("est. {chosen} against {other}", chosen=chosen, other=other)


# ----------------------------------------------------------------------------------- words


def _needs(say: Texts, e: Explanation) -> str:
    """`needs 12 blocks, 9 are free`, of the request itself."""
    blocks, free = _blocks(say, e.numbers.get("needed_blocks")), _are_free(say, e.numbers.get("free_blocks"))
    return say("needs {blocks}, {free}", blocks=blocks, free=free)


def _needed(say: Texts, e: Explanation) -> str:
    """`needed 3 blocks, 1 was free`, of the request that made another one yield."""
    count = e.numbers.get("free_blocks")
    free = say("1 was free") if count == 1 else say("{count} were free", count=count)
    return say("needed {blocks}, {free}", blocks=_blocks(say, e.numbers.get("needed_blocks")), free=free)


def _cause_needed(say: Texts, e: Explanation) -> str:
    return say("{cause} {needed}", cause=_cause(say, e), needed=_needed(say, e))


def _cause(say: Texts, e: Explanation) -> str:
    if e.cause_request_id is None:
        return say("another request")
    return say("it") if e.cause_request_id == e.request_id else e.cause_request_id


def _blocks(say: Texts, count: int | None) -> str:
    return say("1 block") if count == 1 else say("{count} blocks", count=count)


def _tokens(say: Texts, count: int | None) -> str:
    return say("1 token") if count == 1 else say("{count} tokens", count=count)


def _requests(say: Texts, count: int | None) -> str:
    return say("1 request") if count == 1 else say("{count} requests", count=count)


def _are_free(say: Texts, count: int | None) -> str:
    return say("1 is free") if count == 1 else say("{count} are free", count=count)
