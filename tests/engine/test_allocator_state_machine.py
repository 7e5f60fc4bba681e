"""Random interleavings of everything the memory manager can do, checked after each."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from workbench.engine.block_pool import BlockPool
from workbench.engine.kv_cache_manager import KVCacheManager
from workbench.engine.room import Demand

NUM_BLOCKS, BLOCK_SIZE = 12, 4


class AllocatorMachine(RuleBasedStateMachine):
    """A model of what each request holds, in tokens, against the real tables."""

    requests = Bundle("requests")

    def __init__(self):
        super().__init__()
        self.kv = KVCacheManager(BlockPool(NUM_BLOCKS, BLOCK_SIZE), num_swap_blocks=5)
        self.tokens = {}
        self.num_created = 0

    def new_request(self, num_tokens):
        name = f"r{self.num_created}"
        self.num_created += 1
        self.tokens[name] = num_tokens
        return name

    @rule(target=requests, num_tokens=st.integers(1, 30))
    def allocate(self, num_tokens):
        fits = -(-num_tokens // BLOCK_SIZE) <= self.kv.num_free_blocks
        name = f"r{self.num_created}"
        assert self.kv.allocate(name, num_tokens) == fits
        if not fits:
            assert self.kv.block_table(name) == ()
            return multiple()
        self.new_request(num_tokens)
        self.kv.commit(name, num_tokens, num_tokens)
        return name

    @rule(name=requests, more=st.integers(1, 9))
    def append(self, name, more):
        if name not in self.tokens:
            return
        before, computed = self.kv.block_table(name), self.tokens[name]
        wanted = computed + more
        fits = self.kv.blocks_needed(name, wanted, computed) <= self.kv.num_free_blocks
        assert self.kv.allocate(name, wanted, computed) == fits
        if computed % BLOCK_SIZE == 0 or not fits:
            assert self.kv.block_table(name)[: len(before)] == before
        else:  # the block that is written into is nobody else's
            assert self.kv.pool.ref_count(self.kv.block_table(name)[computed // BLOCK_SIZE]) == 1
        if fits:
            self.tokens[name] = wanted
            self.kv.commit(name, wanted, more)

    @rule(target=requests, name=requests)
    def fork(self, name):
        if name not in self.tokens:
            return multiple()
        heir = self.new_request(self.tokens[name])
        free_before = self.kv.num_free_blocks
        self.kv.fork(name, heir)
        assert self.kv.num_free_blocks == free_before
        assert self.kv.block_table(heir) == self.kv.block_table(name)
        return heir

    @rule(name=requests)
    def swap_out_and_in(self, name):
        if name not in self.tokens:
            return
        fits = -(-self.tokens[name] // BLOCK_SIZE) <= self.kv.swap_space.num_free
        assert self.kv.swap_out(name, self.tokens[name]) == fits
        self.kv.check_integrity()
        if fits:
            match = self.kv.match(name, range(self.tokens[name]))
            assert match.num_known_tokens == self.tokens[name]
            if not self.kv.begin(name, Demand(self.tokens[name]), match):  # what it shared is held by others still
                self.kv.forget(name)
                del self.tokens[name]

    @rule(name=requests, keep=st.integers(1, 30))
    def truncate(self, name, keep):
        if name not in self.tokens:
            return
        last = self.kv.block_table(name)[: -(-keep // BLOCK_SIZE)][-1]
        if keep >= self.tokens[name] or (keep % BLOCK_SIZE and self.kv.pool.ref_count(last) > 1):
            return  # a shared block is never cut into
        self.kv.truncate(name, keep)
        self.tokens[name] = keep

    @rule(name=consumes(requests))
    def free_or_preempt(self, name):
        if name in self.tokens:
            held = -(-self.tokens.pop(name) // BLOCK_SIZE)
            assert self.kv.free(name) == held

    @invariant()
    def books_balance(self):
        self.kv.check_integrity()
        for name, num_tokens in self.tokens.items():
            table = self.kv.block_table(name)
            assert len(table) == -(-num_tokens // BLOCK_SIZE)
            assert sum(self.kv.pool.num_filled(b) for b in table) == num_tokens
        held = {b for name in self.tokens for b in self.kv.block_table(name)}
        assert self.kv.pool.num_active == len(held)

    def teardown(self):
        for name in list(self.tokens):
            self.kv.free(name)
        assert self.kv.num_free_blocks == NUM_BLOCKS
        self.kv.check_integrity()


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
