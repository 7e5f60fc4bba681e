"""Random interleavings of everything that can happen to a scheduler, its memory checked after each.

`Memory` verifies that every step reads what was computed from exactly its own tokens, so a block that
is shared, evicted or handed on at the wrong moment is noticed.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine.simulation import Simulation
from workbench.engine.policies import POLICIES
from workbench.engine.policies.admission import ADMISSIONS

FAMILIES = ([1] * 40, [2] * 40, list(range(3, 43)))
"""Prompts begin alike within a family."""


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(4, 14),
        budget=st.sampled_from([4, 16, 64]),
        max_num_seqs=st.integers(1, 5),
        enable_prefix_caching=st.booleans(),
        has_collisions=st.booleans(),
        policy=st.sampled_from(sorted(POLICIES)),
        admission=st.sampled_from(sorted(ADMISSIONS)),
    )
    def start(self, num_blocks, budget, max_num_seqs, enable_prefix_caching, has_collisions, policy, admission):
        self.sim = Simulation(
            num_blocks=num_blocks,
            block_size=4,
            budget=budget,
            max_num_seqs=max_num_seqs,
            max_model_len=4 * num_blocks,
            policy=POLICIES[policy](),
            admission=ADMISSIONS[admission](),
            enable_prefix_caching=enable_prefix_caching,
            hash_function=(lambda _value: 0) if has_collisions else hash,
        )
        self.sim.token_of = lambda request_id, position: 100 + position % 3
        self.requests = {}

    @rule(
        family=st.sampled_from(FAMILIES),
        length=st.integers(1, 20),
        own=st.integers(0, 3),
        output=st.integers(1, 9),
        priority=st.integers(-1, 2),
    )
    def submit(self, family, length, own, output, priority):
        name = f"r{len(self.requests)}"
        prompt = [*family[:length], *range(200, 200 + own)][: self.sim.scheduler.max_model_len - 1]
        self.requests[name] = self.sim.add(name, prompt, max_tokens=output, priority=priority)

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
        for item in plan.scheduled:
            self.sim.memory.compute(item, self.requests[item.request_id].token_ids)
        self.sim.scheduler.abort(lost)
        self.sim.finish_late(plan)

    @invariant()
    def books_balance(self):
        self.sim.scheduler.check_integrity()

    def teardown(self):
        if not hasattr(self, "sim"):
            return
        self.sim.run()
        assert self.sim.kv_cache.num_free_blocks == self.sim.pool.num_blocks
        for request in self.requests.values():
            expected = [100 + position % 3 for position in range(request.num_output_tokens)]
            assert request.output_token_ids == expected


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
