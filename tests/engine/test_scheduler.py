from dataclasses import replace

import pytest

from tests.engine.simulation import EOS, Simulation, decisions, shares
from workbench.engine.room import Demand
from workbench.engine.scheduler_output import Draw, ModelRunnerOutput
from workbench.errors import KVCacheExhaustedError
from workbench.telemetry.records import FinishReason, RequestStatus


def test_short_prompt_prefills_in_one_step_and_then_decodes_one_token_a_step():
    sim = Simulation()
    request = sim.add("a", 5, max_tokens=3)

    assert [shares(plan) for plan in sim.run()] == [{"a": 5}, {"a": 1}, {"a": 1}]
    assert request.output_token_ids == [100, 101, 102]
    assert request.finish_reason is FinishReason.LENGTH


def test_long_prompt_is_chunked_by_the_token_budget_and_samples_only_at_its_end():
    sim = Simulation(budget=8)
    request = sim.add("a", 20, max_tokens=1)

    plans = sim.run()

    assert [shares(plan) for plan in plans] == [{"a": 8}, {"a": 8}, {"a": 4}]
    assert [plan.scheduled[0].samples for plan in plans] == [False, False, True]
    assert request.output_token_ids == [100]


def test_decode_of_one_request_shares_the_step_with_prefill_chunks_of_another():
    sim = Simulation(budget=8)
    sim.add("a", 3, max_tokens=4)
    sim.step()
    sim.add("b", 12, max_tokens=1)

    assert shares(sim.step()[0]) == {"a": 1, "b": 7}
    assert shares(sim.step()[0]) == {"a": 1, "b": 5}


def test_chunk_is_explained_with_the_numbers_of_the_budget():
    sim = Simulation(budget=8)
    sim.add("a", 20)

    admitted, chunked = sim.plan().explanations

    assert (admitted.decision, admitted.reason, admitted.numbers) == (
        "admitted",
        "room",
        {"needed_blocks": 3, "free_blocks": 8, "tokens": 8},
    )
    assert (chunked.decision, chunked.reason, chunked.numbers) == (
        "chunked",
        "token_budget",
        {"tokens": 8, "wanted_tokens": 20, "budget": 8},
    )


def test_admission_takes_the_blocks_of_the_whole_prompt_at_once():
    sim = Simulation(budget=8)
    sim.add("a", 20)
    sim.step()

    assert sim.kv_cache.block_table("a") == (0, 1, 2)
    assert [sim.pool.num_filled(b) for b in (0, 1, 2)] == [8, 0, 0]


def test_request_waits_when_all_sequence_slots_are_taken():
    sim = Simulation(max_num_seqs=1)
    sim.add("a", 3, max_tokens=2)
    sim.add("b", 3)

    plan = sim.plan()

    assert shares(plan) == {"a": 3}
    assert decisions(plan) == [("a", "admitted", "room"), ("b", "deferred", "max_num_seqs")]


def test_request_waits_when_its_whole_context_does_not_fit_and_the_reason_has_the_numbers():
    sim = Simulation(num_blocks=4)
    sim.add("a", 17)
    sim.add("b", 9)
    sim.add("c", 1)

    plan = sim.plan()

    assert shares(plan) == {"a": 17}
    assert decisions(plan) == [
        ("a", "admitted", "room"),
        ("b", "deferred", "no_free_blocks"),
        ("c", "deferred", "behind_head"),
    ]
    assert plan.explanations[1].numbers == {"needed_blocks": 2, "free_blocks": 1}
    assert plan.explanations[2].numbers == {"position": 1}


def test_running_requests_at_the_end_are_deferred_when_the_budget_is_spent():
    sim = Simulation(budget=2)
    for name in "abc":
        sim.add(name, 1, max_tokens=5)
    sim.step()
    plan, _ = sim.step()

    assert shares(plan) == {"a": 1, "b": 1}
    assert decisions(plan) == [("c", "deferred", "token_budget")]


def test_latest_arrival_is_preempted_when_blocks_run_out_and_resumes_first():
    sim = Simulation(num_blocks=3, block_size=8)
    a = sim.add("a", 8, max_tokens=16)
    b = sim.add("b", 8, max_tokens=16)
    plan, _ = sim.step()
    assert shares(plan) == {"a": 8, "b": 8}

    plan, _ = sim.step()  # each needs a second block, one is free

    assert shares(plan) == {"a": 1}
    assert decisions(plan) == [("b", "preempted", "no_free_blocks"), ("b", "deferred", "preempted_this_step")]
    assert plan.explanations[0].cause_request_id == "b"
    assert (b.status, b.num_computed_tokens, b.num_preemptions) == (RequestStatus.PREEMPTED, 0, 1)
    assert sim.kv_cache.block_table("b") == ()
    sim.run()
    assert a.output_token_ids == b.output_token_ids == [100 + i for i in range(16)]


def test_eos_ends_a_request_and_is_part_of_its_output():
    sim = Simulation()
    sim.token_of = lambda _name, position: EOS if position == 2 else 50
    request = sim.add("a", 3)
    sim.run()

    assert request.output_token_ids == [50, 50, EOS]
    assert (request.finish_reason, request.stop_reason) == (FinishReason.STOP, None)


def test_eos_is_an_ordinary_token_when_ignored():
    sim = Simulation()
    sim.token_of = lambda _name, _position: EOS
    request = sim.add("a", 3, ignore_eos=True, max_tokens=4)
    sim.run()

    assert request.output_token_ids == [EOS] * 4
    assert request.finish_reason is FinishReason.LENGTH


def test_stop_token_id_ends_a_request_and_is_named():
    sim = Simulation()
    request = sim.add("a", 3, stop_token_ids=[7, 101])
    sim.run()

    assert request.output_token_ids == [100, 101]
    assert (request.finish_reason, request.stop_reason) == (FinishReason.STOP, 101)


def test_context_length_ends_a_request_with_length():
    sim = Simulation(max_model_len=10)
    request = sim.add("a", 7, max_tokens=None)
    sim.run()

    assert request.num_tokens == 10
    assert request.finish_reason is FinishReason.LENGTH


def test_abort_frees_blocks_of_running_and_forgets_waiting_requests():
    sim = Simulation(max_num_seqs=1)
    a, b = sim.add("a", 20), sim.add("b", 20)
    sim.step()

    assert sim.scheduler.abort("b") == (b,)
    assert sim.scheduler.abort("a") == (a,)
    assert sim.scheduler.abort("a") == ()
    assert [r.status for r in (a, b)] == [RequestStatus.ABORTED] * 2
    assert [r.finish_reason for r in (a, b)] == [FinishReason.ABORT] * 2
    assert sim.pool.num_free == 8
    assert not sim.scheduler.has_work


class EarliestYields:
    """A policy that picks the worst victim there is: one that was served already in this step."""

    name = "earliest_yields"

    def waiting_key(self, request):
        return request.arrival_index

    def choose_victim(self, running):
        return min(running, key=lambda request: request.arrival_index)

    def may_displace(self, running, urgent):
        return False


def test_trap_02_lone_request_that_outgrows_the_pool_ends_with_a_clear_error():
    sim = Simulation(num_blocks=2, block_size=8)
    request = sim.add("a", 10, max_tokens=50)

    plans = sim.run(most_steps=20)

    assert request.num_tokens == 17
    assert request.status is RequestStatus.FAILED
    assert isinstance(request.error, KVCacheExhaustedError)
    assert str(request.error) == (
        "a has grown to 17 tokens and needs 3 KV blocks, the whole pool has 2: "
        "ask for fewer tokens or start the engine with num_blocks >= 3"
    )
    assert decisions(plans[-1]) == [("a", "failed", "outgrew_pool")]
    assert sim.pool.num_free == 2


def test_trap_02_neighbours_are_not_preempted_for_a_request_that_can_never_fit():
    sim = Simulation(num_blocks=4, block_size=8)
    grower = sim.add("a", 20, max_tokens=50)
    neighbour = sim.add("b", 2, max_tokens=40)
    sim.run()

    assert grower.status is RequestStatus.FAILED
    assert neighbour.finish_reason is FinishReason.LENGTH or isinstance(neighbour.error, KVCacheExhaustedError)


def test_trap_03_budget_and_blocks_of_a_victim_that_was_already_scheduled_are_given_back():
    sim = Simulation(num_blocks=3, block_size=8, budget=10, policy=EarliestYields())
    sim.add("a", 8, max_tokens=20)
    sim.add("b", 2, max_tokens=20)
    sim.step()
    for _ in range(6):
        sim.step()  # b reaches 8 tokens; a holds two blocks
    assert (sim.kv_cache.block_table("a"), sim.kv_cache.block_table("b")) == ((0, 2), (1,))

    plan = sim.plan()  # a is served first, then b needs a block and the policy takes a's

    assert shares(plan) == {"b": 1}
    assert plan.num_tokens == 1
    assert decisions(plan)[0] == ("a", "preempted", "no_free_blocks")
    assert sim.pool.num_active == 2
    result = sim.finish(plan)
    assert result.new_token_ids == {"b": (107,)}
    assert sim.scheduler.requests["a"].num_computed_tokens == 0


def test_trap_03_budget_of_a_victim_that_was_already_scheduled_serves_those_behind():
    sim = Simulation(num_blocks=4, block_size=8, budget=21, policy=EarliestYields())
    for name in ("a", "b", "c"):
        sim.add(name, 7, max_tokens=20)
    sim.step()
    sim.step()  # all stand at 8 tokens, one block each, one free
    sim.scheduler.limits.max_num_batched_tokens = 2

    plan = sim.plan()  # a takes one token of the budget and the last block, b preempts a

    assert shares(plan) == {"b": 1, "c": 1}


def test_trap_04_nobody_is_skipped_or_scheduled_twice_when_an_earlier_request_is_preempted():
    sim = Simulation(num_blocks=4, block_size=8, policy=EarliestYields())
    for name in ("a", "b", "c"):
        sim.add(name, 7, max_tokens=20)
    sim.step()
    sim.step()  # all stand at 8 tokens, one block each, one free

    plan = sim.plan()  # a takes the last free block, b preempts a, c finds room in what a left

    names = [item.request_id for item in plan.scheduled]
    assert names == ["b", "c"]
    assert [item.start_position for item in plan.scheduled] == [8, 8]
    sim.finish(plan)


def test_trap_06_preempted_request_resumes_only_when_its_whole_context_fits():
    sim = Simulation(num_blocks=4, block_size=8, budget=8)
    sim.add("a", 8, max_tokens=17)
    b = sim.add("b", 16, max_tokens=8)
    while b not in sim.scheduler.waiting or b.num_preemptions == 0:
        sim.step()
    needed = sim.kv_cache.blocks_for(Demand(b.num_tokens))
    num_waited = 0
    while b in sim.scheduler.waiting:
        free = sim.pool.num_free
        plan, _ = sim.step()
        assert ("b" in shares(plan)) == (free >= needed)
        num_waited += "b" not in shares(plan)
    assert num_waited > 0
    sim.run()
    assert b.num_preemptions == 1
    assert b.output_token_ids == [100 + i for i in range(8)]


def test_trap_13_re_prefill_after_preemption_covers_prompt_and_output():
    sim = Simulation(num_blocks=3, block_size=8)
    sim.add("a", 8, max_tokens=9)
    b = sim.add("b", 6, max_tokens=9)
    while b.num_preemptions == 0:
        sim.step()
    known = tuple(b.token_ids)
    assert known == (1, 2, 3, 4, 5, 6, 100, 101, 102)
    sim.computed["b"].clear()

    sim.run()

    assert sim.computed["b"][0] == known
    assert b.output_token_ids == [100 + i for i in range(9)]


def test_trap_14_result_of_an_aborted_request_is_discarded():
    sim = Simulation()
    a, b = sim.add("a", 3), sim.add("b", 3)
    plan = sim.plan()
    sim.scheduler.abort("a")

    result = sim.finish(plan)

    assert result.new_token_ids == {"b": (100,)}
    assert a.output_token_ids == []
    assert b.output_token_ids == [100]


def test_trap_14_result_of_a_former_life_is_discarded_when_the_request_was_preempted_meanwhile():
    sim = Simulation(num_blocks=3, block_size=8)
    sim.add("a", 8, max_tokens=20)
    b = sim.add("b", 8, max_tokens=20)
    sim.step()
    stale = sim.plan()  # preempts b
    assert "b" not in shares(stale)
    sim.finish(stale)
    before = list(b.token_ids)
    ghost = replace(stale.scheduled[0], request_id="b", start_position=8, token_ids=(100,), draws=(Draw("b", 0),))

    result = sim.scheduler.update_from_output(replace(stale, scheduled=(ghost,)), ModelRunnerOutput({"b": (999,)}))

    assert result.new_token_ids == {}
    assert b.token_ids == before


def test_trap_14_result_of_a_former_life_is_discarded_when_the_request_runs_again():
    sim = Simulation(num_blocks=3, block_size=8, budget=4)
    sim.add("a", 8, max_tokens=2)
    b = sim.add("b", 8, max_tokens=20)
    sim.step()
    sim.step()
    sim.step()
    stale = sim.plan()
    sim.finish(stale)
    assert ("b", b.num_preemptions) in ((item.request_id, 0) for item in stale.scheduled)
    sim.scheduler.kv_cache.truncate("b", 4)
    b.num_computed_tokens = 2  # as after a preemption and a first chunk of its new life
    before = list(b.token_ids)

    result = sim.scheduler.update_from_output(stale, ModelRunnerOutput({"a": (7,), "b": (999,)}))

    assert result.new_token_ids == {}
    assert (b.token_ids, b.num_computed_tokens) == (before, 2)


@pytest.mark.parametrize("budget", [1, 3, 16, 64])
@pytest.mark.parametrize("num_blocks", [3, 5, 40])
def test_outputs_do_not_depend_on_budget_or_pool(budget, num_blocks):
    sim = Simulation(num_blocks=num_blocks, block_size=8, budget=budget)
    requests = [sim.add(f"r{i}", 3 + 2 * i, max_tokens=4 + i) for i in range(5)]
    plans = sim.run()

    assert all(plan.num_tokens <= budget for plan in plans)
    for i, request in enumerate(requests):
        assert request.output_token_ids == [100 + k for k in range(4 + i)]
    assert sim.pool.num_free == num_blocks
