"""What the prefix cache held is summed over the steps, up to the one that is looked at."""

from __future__ import annotations

from pathlib import Path

from tests.telemetry.simulated_engine import SimulatedEngine
from tests.telemetry.test_history import random_run
from workbench.server.state_frame import FrameBuilder
from workbench.telemetry.cache_lookups import CacheLookups
from workbench.telemetry.live_state import LiveState
from workbench.telemetry.run_file import read_run, write_run
from workbench.ui import explain


def figures_of(state: LiveState) -> dict[str, float]:
    """The figures as a page gets them."""
    figures: dict[str, float] = FrameBuilder(explain).past(state, 1).body["figures"]
    return figures


def test_hit_rate_counts_each_context_when_it_is_admitted() -> None:
    engine, state = SimulatedEngine(), LiveState()
    state.reset(1, engine.num_blocks, engine.block_size)
    state.apply(engine.step())
    assert state.lookups == CacheLookups(0, 0)
    assert "looked_up_tokens" not in figures_of(state)

    seen = []
    for prompt in (40, 50, 20):
        engine.add(prompt, 2, "system")
        state.apply(engine.step())
        seen.append((state.lookups.num_looked_up_tokens, state.lookups.num_cached_tokens))
    assert seen == [(40, 0), (90, 32), (110, 48)]
    assert (figures_of(state)["looked_up_tokens"], figures_of(state)["cached_tokens"]) == (110, 48)

    state.reset(2, engine.num_blocks, engine.block_size)
    assert state.lookups == CacheLookups(0, 0)


def test_earlier_step_has_the_hit_rate_that_it_had(tmp_path: Path) -> None:
    run = random_run(200, seed=3, capacity=80)
    first, middle, last = (run.history.state_at(step) for step in (run.history.first_step, 150, 199))
    assert 0 < first.lookups.num_looked_up_tokens < middle.lookups.num_looked_up_tokens
    assert 0 < middle.lookups.num_cached_tokens < last.lookups.num_cached_tokens
    assert last.lookups == run.state.lookups


def test_saved_run_goes_on_from_what_was_counted_before_its_first_step(tmp_path: Path) -> None:
    run = random_run(200, seed=3, capacity=80)
    base, records = run.history.base_and_records()
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(b"".join(write_run(base, records, {"model_name": "simulated"}, "paged")))
    read = read_run(path)
    assert read.base.lookups == base.lookups != CacheLookups()
    for record in read.records:
        read.base.apply(record)
    assert read.base.lookups == run.state.lookups
