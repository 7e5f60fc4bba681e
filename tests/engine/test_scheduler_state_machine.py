"""Random interleavings of everything that can happen to a scheduler, its memory checked after each.

`Memory` verifies that every step reads what was computed from exactly its own tokens, so a block that
is shared, evicted or handed on at the wrong moment is noticed.
"""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine.simulation import Simulation
from workbench.config import PREEMPTION_MODES
from workbench.engine.messages import answer_id
from workbench.engine.policies import POLICIES
from workbench.engine.policies.admission import ADMISSIONS
from workbench.telemetry.records import RequestStatus

FAMILIES = ([1] * 40, [2] * 40, list(range(3, 43)))
"""Prompts begin alike within a family."""


def token_of(request_id, position):
    """Answers to one prompt differ from their first or their second token on."""
    return 100 + (position + (position > 0) * len(request_id)) % 3


def undisturbed_answer(request, max_model_len):
    """What the same search finds alone in a pool with room for everything."""
    sim = Simulation(num_blocks=200, block_size=4, budget=64, max_model_len=max_model_len)
    sim.add("x", request.token_ids[: request.num_prompt_tokens], **msgspec.structs.asdict(request.sampling_params))
    sim.run()
    return sim.requests[answer_id("x", request.index)].output_token_ids


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(4, 14),
        budget=st.sampled_from([4, 16, 64]),
        max_num_seqs=st.integers(1, 5),
        enable_prefix_caching=st.booleans(),
        has_collisions=st.booleans(),
        policy=st.sampled_from(sorted(POLICIES)),
        admission=st.sampled_from(sorted(ADMISSIONS)),
        preemption_mode=st.sampled_from(PREEMPTION_MODES),
        num_swap_blocks=st.integers(0, 10),
        is_contiguous=st.sampled_from([False, False, False, True]),
    )
    def start(
        self,
        num_blocks,
        budget,
        max_num_seqs,
        enable_prefix_caching,
        has_collisions,
        policy,
        admission,
        preemption_mode,
        num_swap_blocks,
        is_contiguous,
    ):
        self.sim = Simulation(
            num_blocks=num_blocks,
            block_size=4,
            budget=budget,
            max_num_seqs=max_num_seqs,
            max_model_len=4 * num_blocks,
            policy=POLICIES[policy](),
            admission=ADMISSIONS[admission](),
            enable_prefix_caching=enable_prefix_caching and not is_contiguous,
            preemption_mode=preemption_mode,
            num_swap_blocks=num_swap_blocks,
            is_contiguous=is_contiguous,
            hash_function=(lambda _value: 0) if has_collisions else hash,
        )
        self.sim.scheduler.preemption.block_transfer_s = 1e-3
        self.sim.scheduler.preemption.token_compute_s = 1e-4 * num_swap_blocks
        self.sim.token_of = token_of
        self.num_submitted = 0

    @rule(
        family=st.sampled_from(FAMILIES),
        length=st.integers(1, 20),
        own=st.integers(0, 3),
        output=st.integers(1, 9),
        priority=st.integers(-1, 2),
        sequences=st.sampled_from([1, 1, 1, 2, 3]),
        use_beam_search=st.booleans(),
    )
    def submit(self, family, length, own, output, priority, sequences, use_beam_search):
        is_refused = use_beam_search and not self.sim.kv_cache.shares_blocks
        if is_refused or sequences > self.sim.scheduler.limits.max_num_seqs:
            sequences, use_beam_search = 1, False  # the door refuses the others
        params = {"use_beam_search": True, "beam_width": sequences} if use_beam_search else {"n": sequences}
        prompt = [*family[:length], *range(200, 200 + own)][: self.sim.scheduler.limits.max_model_len - 1]
        self.sim.add(f"r{self.num_submitted}", prompt, max_tokens=output, priority=priority, **params)
        self.num_submitted += 1

    @rule(steps=st.integers(1, 6))
    def step(self, steps):
        for _ in range(steps):
            if self.sim.scheduler.has_work:
                self.sim.step()

    @precondition(lambda self: self.sim.scheduler.requests)
    @rule(data=st.data())
    def abort(self, data):
        self.sim.scheduler.abort(data.draw(st.sampled_from(sorted(self.sim.scheduler.requests))))

    @precondition(lambda self: self.sim.scheduler.running)
    @rule(data=st.data())
    def abort_between_plan_and_update(self, data):
        plan = self.sim.plan()
        if not plan.scheduled:
            self.sim.finish(plan)
            return
        lost = data.draw(st.sampled_from([item.request_id for item in plan.scheduled]))
        self.sim.execute(plan)
        self.sim.scheduler.abort(lost)
        self.sim.finish_late(plan)

    @precondition(lambda self: self.sim.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data):
        """Whoever it is, as if somebody needed the blocks; beams only all together."""
        roster = self.sim.scheduler.roster
        victim = data.draw(st.sampled_from(sorted(roster.running, key=lambda request: request.request_id)))
        if victim.beams is not None:
            victim.beams.withdraw()
        for request in [victim] if victim.beams is None else victim.beams.requests:
            if request.status is RequestStatus.RUNNING:
                num_kept = min(request.num_computed_tokens, request.num_tokens - 1)
                roster.preempt(request, num_kept if data.draw(st.booleans()) else 0)

    @precondition(lambda self: self.sim.scheduler.requests)
    @rule(data=st.data())
    def ask_to_preempt(self, data):
        self.sim.scheduler.preempt(data.draw(st.sampled_from(sorted(self.sim.scheduler.requests))))

    @precondition(lambda self: self.sim.scheduler.running)
    @rule(data=st.data(), num_right=st.integers(0, 5), num_wrong=st.integers(0, 3))
    def draft(self, data, num_right, num_wrong):
        """Guesses for somebody who decodes, right up to some point; the drafter leaves room for one token more."""
        limit = self.sim.scheduler.limits.max_model_len
        decoding = [
            r
            for r in self.sim.scheduler.running
            if r.beams is None and r.num_output_tokens and r.num_missing_tokens == 1
        ]
        if decoding:
            request = data.draw(st.sampled_from(sorted(decoding, key=lambda each: each.request_id)))
            first, room = request.num_output_tokens, request.most_tokens(limit) - request.num_tokens - 1
            right = [token_of(request.request_id, first + offset) for offset in range(num_right)]
            self.sim.draft(request.request_id, *[*right, *[99] * num_wrong][: max(0, room)])

    @precondition(lambda self: self.sim.scheduler.requests)
    @rule(limit=st.integers(1, 5))
    def change_limit(self, limit):
        self.sim.scheduler.limits.max_num_seqs = limit

    @precondition(lambda self: self.sim.scheduler.requests)
    @rule(data=st.data())
    def lose_what_was_swapped(self, data):
        swapped = sorted(self.sim.kv_cache.swap_space.contexts)
        if swapped:
            self.sim.scheduler.lose_swapped(data.draw(st.sampled_from(swapped)))

    @invariant()
    def books_balance(self):
        if hasattr(self, "sim"):
            self.sim.scheduler.check_integrity()

    def teardown(self):
        if not hasattr(self, "sim"):
            return
        self.sim.run()
        assert self.sim.kv_cache.num_free_blocks == self.sim.pool.num_blocks
        assert self.sim.kv_cache.swap_space.num_free == self.sim.kv_cache.swap_space.num_blocks
        for request in self.sim.requests.values():
            assert request.status.is_terminal
            if request.beams is None:
                expected = [token_of(request.request_id, position) for position in range(request.num_output_tokens)]
                assert request.output_token_ids == expected
            elif request.status is RequestStatus.FINISHED and request.beam_score is not None:
                assert request.output_token_ids == undisturbed_answer(request, self.sim.scheduler.limits.max_model_len)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
