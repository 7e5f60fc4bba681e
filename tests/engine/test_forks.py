"""Answers that share blocks until they write: copy-on-write forks in the scheduler, without a model."""

import pytest

from tests.engine.simulation import EOS, Simulation, decisions, shares
from workbench.engine.policies.priority import Priority
from workbench.engine.policies.sjf import ShortestJobFirst
from workbench.telemetry.records import BlockTransfer, FinishReason, RequestStatus, TransferKind


def copies(plan):
    return [each for each in plan.transfers if each.kind is TransferKind.COPY]


def test_answers_share_the_prompt_and_only_the_last_block_is_copied():
    sim = Simulation(num_blocks=12, block_size=8)
    sim.add("a", 20, n=4, max_tokens=4)

    plan, result = sim.step()

    assert shares(plan) == {"a": 20}
    assert [draw.request_id for draw in plan.scheduled[0].draws] == ["a", "a.1", "a.2", "a.3"]
    assert set(result.new_token_ids) == {"a", "a.1", "a.2", "a.3"}
    assert [sim.kv_cache.block_table(r.request_id) for r in sim.scheduler.running] == [(0, 1, 2)] * 4
    assert sim.pool.num_active == 3

    plan, _ = sim.step()

    assert copies(plan) == [
        BlockTransfer(TransferKind.COPY, 2, 3 + i, name) for i, name in enumerate(["a", "a.1", "a.2"])
    ]
    assert [sim.kv_cache.block_table(r.request_id) for r in sim.scheduler.running] == [
        (0, 1, 3),
        (0, 1, 4),
        (0, 1, 5),
        (0, 1, 2),
    ]
    assert sim.pool.num_active == 6
    assert sim.pool.ref_count(0) == 4
    assert all(not copies(plan) for plan in sim.run())
    assert sim.pool.num_free == 12


def test_answers_to_a_prompt_that_fills_its_blocks_copy_nothing():
    sim = Simulation(num_blocks=12, block_size=8)
    sim.add("a", 16, n=3, max_tokens=3)

    plans = sim.run()

    assert not any(copies(plan) for plan in plans)
    assert len({r.request_id for r in sim.requests.values() if r.finish_reason is FinishReason.LENGTH}) == 3


def test_answers_take_the_places_of_as_many_requests():
    sim = Simulation(num_blocks=20, block_size=8, max_num_seqs=4)
    sim.add("a", 8, n=3, max_tokens=2)
    sim.add("b", 8, n=2, max_tokens=2)

    plan = sim.plan()

    assert shares(plan) == {"a": 8}
    assert ("b", "deferred", "max_num_seqs") in decisions(plan)
    assert plan.explanations[-1].numbers == {"running": 3, "max_num_seqs": 4, "wanted_seqs": 2}
    sim.finish(plan)
    sim.run()
    assert all(r.num_output_tokens == 2 for r in sim.requests.values())


def test_answers_run_together_even_when_the_limit_was_lowered_under_them():
    sim = Simulation(num_blocks=20, block_size=8, max_num_seqs=4)
    sim.add("a", 8, n=4, max_tokens=2)
    sim.scheduler.limits.max_num_seqs = 2
    sim.run()
    assert all(r.num_output_tokens == 2 for r in sim.requests.values())


def test_first_answer_is_aborted_before_they_part_and_the_others_go_on_where_it_stood():
    sim = Simulation(num_blocks=12, block_size=8, budget=8)
    sim.add("a", 20, n=3, max_tokens=3)
    sim.step()

    ended = sim.scheduler.abort("a")

    assert [r.request_id for r in ended] == ["a"]
    plan, _ = sim.step()
    assert (plan.scheduled[0].request_id, plan.scheduled[0].start_position) == ("a.1", 8)
    sim.run()
    assert [r.num_output_tokens for r in sim.requests.values()] == [0, 3, 3]
    assert sim.pool.num_free == 12


def test_answer_that_stands_by_is_aborted_alone():
    sim = Simulation(num_blocks=12, block_size=8, budget=8)
    sim.add("a", 20, n=3, max_tokens=3)
    sim.step()
    assert [r.request_id for r in sim.scheduler.abort("a.1")] == ["a.1"]
    sim.scheduler.check_integrity()
    sim.run()
    assert [r.num_output_tokens for r in sim.requests.values()] == [3, 0, 3]


def test_failure_of_the_one_that_computes_ends_those_that_stand_by():
    sim = Simulation(num_blocks=12, block_size=8, budget=8)
    sim.add("a", 20, n=3)
    sim.step()
    assert len(sim.scheduler.fail("a", ValueError("broken"))) == 3
    assert {r.status for r in sim.requests.values()} == {RequestStatus.FAILED}
    assert sim.pool.num_free == 12


def test_answer_that_ends_at_once_leaves_the_shared_blocks_to_the_others():
    sim = Simulation(num_blocks=12, block_size=8)
    sim.token_of = lambda request_id, position: EOS if request_id == "a" else 100 + position
    sim.add("a", 12, n=2, max_tokens=5)

    sim.step()

    assert sim.requests["a"].finish_reason is FinishReason.STOP
    assert sim.kv_cache.block_table("a.1") == (0, 1)
    assert not copies(sim.step()[0])  # nobody else holds the last block any more
    sim.run()
    assert sim.requests["a.1"].num_output_tokens == 5


def test_copies_are_taken_from_someone_when_there_is_no_room_for_them():
    sim = Simulation(num_blocks=3, block_size=8)
    sim.add("a", 12, n=2, max_tokens=8)

    plans = sim.run()

    assert ("a.1", "preempted", "no_free_blocks") in [each for plan in plans for each in decisions(plan)]
    assert [r.output_token_ids for r in sim.requests.values()] == [list(range(100, 108))] * 2


def test_beams_share_what_they_have_in_common_and_end_with_the_best_answers():
    sim = Simulation(num_blocks=30, block_size=8)
    sim.add("a", 20, n=2, use_beam_search=True, beam_width=4, max_tokens=6)

    plans = sim.run()

    assert [len(plan.scheduled) for plan in plans] == [1, 4, 4, 4, 4, 4]
    assert [item.num_candidates for item in plans[0].scheduled] == [5]
    first, second, *others = sim.requests.values()
    assert [len(each.output_token_ids) for each in (first, second)] == [6, 6]
    assert first.beam_score is not None and second.beam_score is not None
    assert first.beam_score > second.beam_score
    assert all(each.beam_score is None for each in others)
    assert any(copies(plan) for plan in plans)
    assert sim.pool.num_free == 30


def test_beams_are_preempted_together_and_find_the_same_answers():
    alone = Simulation(num_blocks=60, block_size=4)
    alone.add("a", 10, use_beam_search=True, beam_width=3, max_tokens=9)
    alone.run()

    for mode in ("recompute", "swap"):
        sim = Simulation(num_blocks=11, block_size=4, preemption_mode=mode, num_swap_blocks=40)
        sim.add("b", 16, max_tokens=14)
        sim.add("a", 10, use_beam_search=True, beam_width=3, max_tokens=9)
        plans = sim.run()
        taken = [e.request_id for plan in plans for e in plan.explanations if e.decision.value == "preempted"]
        assert "a" in taken and len(set(taken)) > 1, mode
        assert sim.requests["a"].output_token_ids == alone.requests["a"].output_token_ids


def test_beams_that_do_not_fit_together_any_more_end_with_the_numbers():
    sim = Simulation(num_blocks=8, block_size=4, max_model_len=64)
    sim.add("a", 14, use_beam_search=True, beam_width=4, max_tokens=40)

    plans = sim.run()

    assert sim.requests["a"].status is RequestStatus.FAILED
    assert "in 4 beams" in str(sim.requests["a"].error)
    assert "outgrew_pool" in [reason for plan in plans for _, _, reason in decisions(plan)]
    assert sim.pool.num_free == 8


def test_beams_of_two_requests_that_hold_each_other_up_do_not_stand_still():
    sim = Simulation(num_blocks=13, block_size=4, max_model_len=64)
    for name in ("a", "b"):
        sim.add(name, 8, use_beam_search=True, beam_width=3, max_tokens=8)

    plans = sim.run()

    assert {r.status for r in sim.requests.values()} == {RequestStatus.FINISHED}
    assert any("preempted" in [d for _, d, _ in decisions(plan)] for plan in plans)


def test_abort_of_a_beam_ends_the_search():
    sim = Simulation(num_blocks=30, block_size=8)
    sim.add("a", 20, n=2, use_beam_search=True, beam_width=3, max_tokens=6)
    sim.step()
    sim.step()
    assert len(sim.scheduler.abort("a")) == 3
    assert not sim.scheduler.has_work
    assert sim.pool.num_free == 30


def test_beams_that_have_parted_take_one_place_each():
    sim = Simulation(num_blocks=30, block_size=8, max_num_seqs=4)
    sim.add("a", 8, use_beam_search=True, beam_width=3, max_tokens=6)
    sim.step()
    sim.add("b", 8, max_tokens=3)
    assert "b" in shares(sim.step()[0])


def test_offers_of_beams_are_void_once_they_are_preempted():
    alone = Simulation(num_blocks=60, block_size=4)
    alone.add("a", 9, use_beam_search=True, beam_width=3, max_tokens=8)
    alone.run()

    sim = Simulation(num_blocks=40, block_size=4, budget=2, policy=Priority(), max_num_seqs=3)
    a = sim.add("a", 9, use_beam_search=True, beam_width=3, max_tokens=8, priority=5)
    while a.beams is None or not (len(a.beams.members) == 3 and any(map(a.beams.has_offered, a.beams.members))):
        sim.step()  # the budget is for two of the three beams
    sim.add("urgent", 4, max_tokens=2, priority=0)
    sim.run()

    assert a.num_preemptions > 0
    assert a.output_token_ids == alone.requests["a"].output_token_ids


def test_sibling_that_is_computed_again_is_shared_only_as_far_as_it_got():
    sim = Simulation(num_blocks=12, block_size=8, budget=8, policy=Priority())
    sim.add("a", 40, n=2, max_tokens=8, priority=5)
    while sim.requests["a.1"].num_output_tokens < 3:
        sim.step()
    sim.add("urgent", 80, max_tokens=2, priority=0)
    first, second = sim.requests["a"], sim.requests["a.1"]
    while first not in sim.scheduler.waiting or second not in sim.scheduler.waiting:
        sim.step()
    seen = []
    while second in sim.scheduler.waiting:
        if first in sim.scheduler.running:
            match = sim.scheduler.admission.match(second)
            seen.append((first.num_computed_tokens, match.num_tokens))
        sim.step()
    assert (8, 8) in seen and (16, 16) in seen
    assert all(shared <= computed for computed, shared in seen)
    sim.run()
    assert first.output_token_ids == second.output_token_ids == list(range(100, 108))


@pytest.mark.parametrize("windows", [(None,), (6,), (None, 5), (3, 9)])
def test_two_searches_do_not_take_each_others_blocks_for_ever(windows):
    sim = Simulation(
        num_blocks=10,
        block_size=4,
        budget=16,
        max_num_seqs=3,
        max_model_len=40,
        policy=ShortestJobFirst(),
        enable_prefix_caching=True,
        windows=windows,
    )
    sim.add("r0", [1] * 8, max_tokens=7)
    sim.add("r1", [1] * 13, max_tokens=8)
    sim.add("r2", [1] * 18 + [200, 201], max_tokens=5, use_beam_search=True, beam_width=2)
    sim.add("r3", [1] * 4, max_tokens=2, use_beam_search=True, beam_width=3)
    sim.run()
    assert sim.requests["r3"].status is RequestStatus.FINISHED
