"""Drafted tokens in the scheduler: what they may cost, what becomes of the accepted and of the rejected."""

import pytest

from tests.engine.simulation import EOS, Simulation, shares
from workbench.telemetry.records import FinishReason


def decoding(*names, prompt=4, max_tokens=32, **settings):
    """A simulation in which each request has its prompt computed and one token 100."""
    sim = Simulation(block_size=4, **settings)
    for name in names:
        sim.add(name, prompt, max_tokens=max_tokens)
    sim.step()
    return sim


def test_accepted_tokens_are_appended_with_the_bonus_behind_them():
    sim = decoding("a")
    sim.draft("a", 101, 102)

    plan, result = sim.step()

    assert plan.scheduled[0].token_ids == (100, 101, 102) and plan.scheduled[0].draft_token_ids == (101, 102)
    assert not plan.scheduled[0].is_prefill
    assert result.new_token_ids == {"a": (101, 102, 103)} and result.num_accepted == {"a": 2}
    assert sim.requests["a"].num_computed_tokens == 7 and sim.requests["a"].num_missing_tokens == 1


def test_first_rejected_token_is_replaced_and_those_behind_it_are_dropped():
    sim = decoding("a")
    sim.draft("a", 101, 7, 103)

    plan, result = sim.step()

    assert plan.scheduled[0].num_tokens == 4
    assert result.new_token_ids == {"a": (101, 102)} and result.num_accepted == {"a": 1}
    assert sim.requests["a"].num_computed_tokens == 6
    assert sim.step()[0].scheduled[0].token_ids == (102,)


def test_blocks_behind_the_accepted_tokens_are_given_back_in_the_same_step():
    sim = decoding("a")
    sim.draft("a", 101, 7, 103, 104, 105)

    plan = sim.plan()
    assert len(plan.scheduled[0].block_tables[0]) == 3
    sim.finish(plan)

    assert sim.kv_cache.num_blocks_of("a") == 2
    assert sim.pool.num_unused_slots == 2


def test_full_blocks_of_accepted_tokens_can_be_found_and_those_of_rejected_ones_cannot():
    sim = decoding("a", enable_prefix_caching=True)
    sim.draft("a", 101, 102, 103, 7, 8, 9, 10)
    sim.step()
    context = [1, 2, 3, 4, 100, 101, 102, 103]
    sim.scheduler.abort("a")

    sim.add("b", [*context, 1])
    assert sim.plan().scheduled[0].start_position == 8
    sim.scheduler.abort("b")
    sim.add("c", [*context, 7, 8, 9, 10, 1])
    assert sim.plan().scheduled[0].start_position == 8


def test_drafts_take_turns_where_the_budget_does_not_hold_all():
    sim = decoding("a", "b", "c", budget=12)
    for name in "abc":
        sim.draft(name, 101, 102, 103, 104, 105)

    assert shares(sim.plan()) == {"a": 4, "b": 4, "c": 4}


def test_drafts_never_take_the_token_of_a_request_that_comes_later():
    sim = decoding("a", "b", "c", budget=12)
    sim.scheduler.limits.max_num_batched_tokens = 3
    for name in "abc":
        sim.draft(name, 101, 102)

    assert shares(sim.plan()) == {"a": 1, "b": 1, "c": 1}


def test_drafts_take_at_most_half_of_the_budget_from_a_prompt():
    sim = decoding("a", budget=21, num_blocks=40)
    sim.add("long", 100)
    sim.draft("a", *range(101, 117))

    assert shares(sim.plan()) == {"a": 11, "long": 10}


def test_drafts_give_way_where_blocks_are_short_and_nobody_is_preempted_for_them():
    sim = decoding("a", "b", num_blocks=4)
    sim.draft("a", 101, 102, 103, 104)
    sim.draft("b", 101, 102, 103, 104)

    plan, result = sim.step()

    assert shares(plan) == {"a": 4, "b": 4}
    assert not plan.explanations
    assert result.num_accepted == {"a": 3, "b": 3}


def test_drafts_leave_the_blocks_to_a_request_that_can_start_with_them():
    sim = decoding("a", num_blocks=4)
    sim.draft("a", *range(101, 109))
    sim.add("b", 8)

    assert shares(sim.plan()) == {"a": 4, "b": 8}


def test_preempted_request_gives_its_drafts_back_with_its_budget_and_blocks():
    """TRAPS.md 3: the victim was already served in this step."""
    sim = decoding("a", "b", num_blocks=4, prompt=8, budget=18, max_tokens=8)
    sim.draft("b", 101, 102, 103)

    plan, _ = sim.step()

    assert shares(plan) == {"a": 1}
    assert sim.requests["b"].draft_token_ids == () and sim.kv_cache.num_blocks_of("b") == 0
    sim.run()
    assert sim.requests["b"].output_token_ids == list(range(100, 108))


def test_draft_of_a_request_that_is_not_scheduled_is_verified_later():
    sim = decoding("a", "b", budget=8)
    sim.draft("b", 101)
    sim.scheduler.limits.max_num_batched_tokens = 1

    assert shares(sim.plan()) == {"a": 1}
    sim.scheduler.abort("a")
    sim.scheduler.limits.max_num_batched_tokens = 8
    assert sim.step()[1].new_token_ids == {"b": (101, 102)}


def test_draft_that_did_not_fit_is_dropped_when_its_place_is_taken():
    sim = decoding("a", budget=8)
    sim.draft("a", 101, 102)
    sim.scheduler.limits.max_num_batched_tokens = 1

    assert sim.step()[1].new_token_ids == {"a": (101,)}
    assert sim.requests["a"].draft_token_ids == ()


def test_nothing_behind_an_end_of_text_inside_the_accepted_run_is_kept():
    """TRAPS.md 15."""
    sim = decoding("a")
    sim.token_of = lambda _name, position: EOS if position == 2 else 100 + position
    sim.draft("a", 101, EOS, 103, 104)

    _, result = sim.step()

    assert result.new_token_ids == {"a": (101, EOS)} and result.num_accepted == {"a": 2}
    assert sim.requests["a"].finish_reason is FinishReason.STOP
    assert sim.pool.num_free == sim.pool.num_blocks


def test_end_of_text_as_the_recovered_token_ends_the_answer():
    sim = decoding("a")
    sim.token_of = lambda _name, position: EOS if position == 2 else 100 + position
    sim.draft("a", 101, 102)

    _, result = sim.step()

    assert result.new_token_ids == {"a": (101, EOS)} and result.num_accepted == {"a": 1}


def test_max_tokens_ends_an_answer_inside_the_accepted_run():
    sim = decoding("a", max_tokens=3)
    sim.draft("a", 101, 102, 103)

    _, result = sim.step()

    assert result.new_token_ids == {"a": (101, 102)}
    assert sim.requests["a"].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("is_aborted", [True, False])
def test_verified_draft_of_a_request_that_was_aborted_or_preempted_meanwhile_is_discarded(is_aborted):
    """TRAPS.md 14."""
    sim = decoding("a")
    sim.draft("a", 101, 102)
    plan = sim.plan()
    sim.execute(plan)
    if is_aborted:
        sim.scheduler.abort("a")
    else:
        sim.scheduler.roster.preempt(sim.requests["a"], 0)

    assert sim.finish_late(plan).new_token_ids == {}
    assert sim.requests["a"].output_token_ids == [100]


def test_windows_keep_what_the_tokens_behind_a_rejected_draft_read():
    sim = decoding("a", windows=(6,), num_blocks=6, prompt=8)
    for _ in range(4):
        at = sim.requests["a"].num_output_tokens
        sim.draft("a", 100 + at, 7, 8, 9, 10, 11)
        sim.step()
    assert sim.requests["a"].output_token_ids == [100 + i for i in range(9)]


def test_reserved_run_keeps_its_blocks_when_a_draft_is_rejected():
    sim = decoding("a", is_contiguous=True, max_tokens=8)
    before = sim.kv_cache.num_blocks_of("a")
    sim.draft("a", 101, 7, 8, 9)
    sim.step()
    assert sim.kv_cache.num_blocks_of("a") == before == 3
    sim.run()
    assert sim.requests["a"].output_token_ids == list(range(100, 108))
