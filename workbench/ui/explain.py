"""The scheduler's decisions in words. Every sentence about a decision stands here, and nowhere else.

`explain` turns one record into one sentence with the numbers that the rule compared:
`waiting: needs 12 blocks, 9 are free`. It is pure: records in, text out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from workbench.telemetry.records import CacheMiss, Decision, Explanation, Reason
from workbench.ui import numbers

_OPENINGS: Final[Mapping[Decision, str]] = {
    Decision.ADMITTED: "admitted",
    Decision.RESUMED: "resumed",
    Decision.CHUNKED: "computed in part",
    Decision.DEFERRED: "waiting",
    Decision.PREEMPTED: "preempted",
    Decision.FAILED: "failed",
}


def explain(explanation: Explanation) -> str:
    """Return a decision and its rule as one sentence. A number that the record lacks is shown as a dash."""
    rule = _RULES[explanation.reason](explanation)
    aftermath = _aftermath(explanation) if explanation.decision is Decision.PREEMPTED else ""
    return f"{_OPENINGS[explanation.decision]}: {rule}{aftermath}"


def explain_miss(miss: CacheMiss | None, differs_at: int | None = None) -> str:
    """Return why no more of a context was found in the prefix cache; empty when nothing was missing.

    `differs_at` is the first position, from 0, whose token is not the cached one.
    """
    match miss:
        case None:
            return ""
        case CacheMiss.DISABLED:
            return "prefix cache off"
        case CacheMiss.BYPASSED:
            return "cache bypassed for prompt logprobs"
        case CacheMiss.SHORTER_THAN_BLOCK:
            return "shorter than a block"
        case CacheMiss.EVICTED:
            return "the next block was evicted"
        case CacheMiss.DIFFERS:
            if differs_at == 0:
                return "nothing cached begins like it"
            return "differs" if differs_at is None else f"differs at token {differs_at:,}"


# ------------------------------------------------------------------------------- the rules


def _room(e: Explanation) -> str:
    swapped, cached = e.numbers.get("swapped_blocks"), e.numbers.get("cached_tokens")
    parts = [_needs(e)]
    if swapped:
        parts.append(f"{_blocks(swapped)} brought back from host memory")
    if cached:
        parts.append(f"{_tokens(cached)} found in the cache")
    parts.append(f"{_tokens(e.numbers.get('tokens'))} computed in this step")
    return "; ".join(parts)


def _past_head(e: Explanation) -> str:
    return f"before {_things(e.numbers.get('overtaken'), 'earlier request')} that cannot start yet; {_room(e)}"


def _more_urgent(e: Explanation) -> str:
    own, urgent = (numbers.count(e.numbers.get(name)) for name in ("priority", "urgent_priority"))
    words = f"{_cause(e)} is more urgent (priority {urgent} against {own})"
    if e.decision is Decision.PREEMPTED:
        return f"{words} and {_needed(e)}"
    tokens, wanted = (e.numbers.get(name) for name in ("tokens", "wanted_tokens"))
    return f"{words}: {numbers.count(tokens)} of {_tokens(wanted)} are left of this step"


def _token_budget(e: Explanation) -> str:
    tokens, wanted, budget = (e.numbers.get(name) for name in ("tokens", "wanted_tokens", "budget"))
    if tokens:
        return f"{numbers.count(tokens)} of {_tokens(wanted)} fit into the step's budget of {numbers.count(budget)}"
    return f"{_tokens(wanted)} to compute, the step's budget of {numbers.count(budget)} is spent"


def _no_free_blocks(e: Explanation) -> str:
    return f"{_cause(e)} {_needed(e)}" if e.decision is Decision.PREEMPTED else _needs(e)


def _no_free_run(e: Explanation) -> str:
    run = f"the longest run is {numbers.count(e.numbers.get('longest_run'))}"
    if e.decision is Decision.PREEMPTED:
        return f"{_cause(e)} {_needed(e)}, {run}"
    needed, free = e.numbers.get("needed_blocks"), e.numbers.get("free_blocks")
    return f"needs {_things(needed, 'consecutive block')}, {_are_free(free)}, {run}"


def _max_num_seqs(e: Explanation) -> str:
    running, most, wanted = (e.numbers.get(name) for name in ("running", "max_num_seqs", "wanted_seqs"))
    words = f"{numbers.count(running)} of {_things(most, 'sequence')} run"
    return f"{words}, this request brings {numbers.count(wanted)}" if wanted else words


def _behind_head(e: Explanation) -> str:
    return f"{_things(e.numbers.get('position'), 'request')} before it in the queue"


def _preempted_this_step(e: Explanation) -> str:
    count = e.numbers.get("num_preempted")
    return f"{_things(count, 'request')} had to make room in this step, so nobody starts"


def _outgrew_pool(e: Explanation) -> str:
    return f"needs {_blocks(e.numbers.get('needed_blocks'))}, the whole pool has {_count(e, 'num_blocks')}"


def _standstill(e: Explanation) -> str:
    return f"every running request waited for beams that do not fit; {_cause(e)} {_needed(e)}"


def _requested(e: Explanation) -> str:
    freed = e.numbers.get("freed_blocks")
    was = "was" if freed == 1 else "were"
    return f"somebody asked for it; {_blocks(freed)} {was} given back"


_RULES: Final[Mapping[Reason, Callable[[Explanation], str]]] = {
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


def _aftermath(e: Explanation) -> str:
    """What became of the context of a preempted request, and which estimates decided that."""
    swapped, room = e.numbers.get("swapped_blocks"), e.numbers.get("free_swap_blocks")
    swap_us, recompute_us = e.numbers.get("swap_us"), e.numbers.get("recompute_us")
    if swapped:
        return f"; kept in host memory ({_blocks(swapped)}{_estimates(', ', swap_us, recompute_us)})"
    if room is not None:
        return f"; computed again later, since only {_things(room, 'block')} of the swap space {_are(room)} free"
    estimates = _estimates("", recompute_us, swap_us)
    return f"; computed again later ({estimates})" if estimates else "; computed again later"


def _estimates(separator: str, chosen_us: int | None, other_us: int | None) -> str:
    if chosen_us is None or other_us is None:
        return ""
    chosen, other = numbers.milliseconds(chosen_us / 1e6), numbers.milliseconds(other_us / 1e6)
    return f"{separator}est. {chosen} against {other}"


# ----------------------------------------------------------------------------------- words


def _needs(e: Explanation) -> str:
    """`needs 12 blocks, 9 are free`, of the request itself."""
    return f"needs {_blocks(e.numbers.get('needed_blocks'))}, {_are_free(e.numbers.get('free_blocks'))}"


def _needed(e: Explanation) -> str:
    """`needed 3 blocks, 1 was free`, of the request that made another one yield."""
    free = e.numbers.get("free_blocks")
    was = "was" if free == 1 else "were"
    return f"needed {_blocks(e.numbers.get('needed_blocks'))}, {numbers.count(free)} {was} free"


def _cause(e: Explanation) -> str:
    if e.cause_request_id is None:
        return "another request"
    return "it" if e.cause_request_id == e.request_id else e.cause_request_id


def _blocks(count: int | None) -> str:
    return _things(count, "block")


def _tokens(count: int | None) -> str:
    return _things(count, "token")


def _things(count: int | None, thing: str) -> str:
    return f"{numbers.count(count)} {thing}{'' if count == 1 else 's'}"


def _are(count: int | None) -> str:
    return "is" if count == 1 else "are"


def _are_free(count: int | None) -> str:
    return f"{numbers.count(count)} {_are(count)} free"


def _count(e: Explanation, name: str) -> str:
    return numbers.count(e.numbers.get(name))
