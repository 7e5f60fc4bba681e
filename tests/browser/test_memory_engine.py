"""What a real engine does with its memory, as the Blocks tab shows it, and the settings that decide on it.

Expected states come from the engine's own pool and records, never from the feed under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import preset, running, visit, wait_until
from tests.browser.map_page import (
    OWNERS,
    OpenPage,
    Serve,
    bottom_pixel,
    build_map_app,
    check_pixels,
    chip,
    open_map,
    panel,
    rest_pointer,
    rgb,
    run_steps,
    shown_states,
    wait_for_step,
)
from tests.browser.running_server import DEADLINE_MS
from tests.server.live_client import states_in
from workbench.config import EngineConfig
from workbench.engine.service import EngineService
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import Decision, RequestState, RequestStatus, StepRecord, TransferKind
from workbench.ui.explain import explain

expect.set_options(timeout=DEADLINE_MS)


@contextmanager
def engine(model: Path, **settings: Any) -> Iterator[tuple[EngineService, list[StepRecord]]]:
    """A real engine, held before its first step, and the records of all its steps."""
    service = EngineService(EngineConfig(model=str(model), check_integrity=True, **settings))
    service.start()
    records: list[StepRecord] = []
    try:
        service.wait_ready(100)
        service.subscribe(records.append)
        service.pause()
        yield service, records
    finally:
        service.shutdown()


def submit(service: EngineService, num_prompt_tokens: int, max_tokens: int, first: int = 3, **more: Any) -> str:
    """A request whose prompt is its own; it goes on until `max_tokens`."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=1.0, seed=first, **more)
    prompt = [3 + (first + 7 * i) % 250 for i in range(num_prompt_tokens)]
    return service.submit(prompt, params, lambda event: None)


def run_until(service: EngineService, records: list[StepRecord], is_there: Callable[[StepRecord], bool]) -> StepRecord:
    """Let the held engine go on step by step until a record shows what is asked for."""
    for _ in range(400):
        run_steps(service, 1)
        if is_there(records[-1]):
            return records[-1]
    raise AssertionError("400 steps did not show it")


def state_of(record: StepRecord, request_id: str) -> RequestState:
    return next(state for state in record.requests if state.request_id == request_id)


def test_answers_of_one_request_share_its_prompt_and_copies_are_listed(
    tiny_model: Path, serve: Serve, open_page: OpenPage
) -> None:
    with engine(tiny_model, num_blocks=64) as (service, records):
        page = open_page().page
        open_map(page, serve(build_map_app(service)).url)
        name = submit(service, 40, 60, n=3)
        record = run_until(service, records, lambda r: any(t.kind is TransferKind.COPY for t in r.transfers))
        wait_for_step(page, record.step_id)
        snapshot = service.pool_snapshot()
        assert shown_states(page) == states_in(snapshot)
        assert check_pixels(page, snapshot)["shared"] >= 2
        copies = [t for t in record.transfers if t.kind is TransferKind.COPY]
        rows = panel(page, "Memory traffic").locator("[data-part=trafficRows] p")
        for copy in copies:
            words = f"step {record.step_id}: {copy.request_id} copied block {copy.source_id} → {copy.target_id}"
            expect(rows.filter(has_text=words)).to_have_count(1)
        expect(panel(page, "Memory traffic").locator("[data-part=movedCopy]")).to_have_text(str(len(copies)))
        shared = [block.block_id for block in snapshot.blocks if len(block.request_ids) == 3]
        assert len(shared) == 2
        for own in (name, f"{name}.1", f"{name}.2"):
            chip(page, own).click()
            assert page.evaluate("name => wb.store.live.tableOf(wb.store.live.byId.get(name))", own)[:2] == shared
            rest_pointer(page)
            slot = page.evaluate("name => wb.store.live.byId.get(name).slot", own)
            assert [tuple(bottom_pixel(page, block)) for block in shared] == [rgb(OWNERS[slot])] * 2


def test_swapped_request_is_told_with_the_numbers_of_the_record(
    tiny_model: Path, serve: Serve, open_page: OpenPage
) -> None:
    with engine(tiny_model, num_blocks=16, preemption_mode="swap", swap_space=0.01) as (service, records):
        page = open_page().page
        open_map(page, serve(build_map_app(service)).url)
        for first in (3, 50):
            submit(service, 100, 100, first=first)
        record = run_until(service, records, lambda r: any(t.kind is TransferKind.SWAP_OUT for t in r.transfers))
        wait_for_step(page, record.step_id)
        moved = [t for t in record.transfers if t.kind is TransferKind.SWAP_OUT]
        name, count = moved[0].request_id, len(moved)
        held = state_of(record, name)
        assert (held.status, held.num_swapped_blocks) == (RequestStatus.SWAPPED, count)
        used = record.num_swap_blocks - record.num_free_swap_blocks
        assert used == count
        expect(page.locator("#wb-block-map [data-part=swapText]")).to_have_text(
            f"{used} of {record.num_swap_blocks:,} blocks"
        )
        rows = panel(page, "Memory traffic").locator("[data-part=trafficRows] p")
        expect(rows.first).to_have_text(f"step {record.step_id}: {name} swapped out {count} blocks")
        (preemption,) = [e for e in record.explanations if e.decision is Decision.PREEMPTED]
        queue = panel(page, "Queue").locator("[data-part=queueRows] > div")
        expect(queue).to_contain_text(explain(preemption).removesuffix("."))
        back = run_until(service, records, lambda r: any(t.kind is TransferKind.SWAP_IN for t in r.transfers))
        wait_for_step(page, back.step_id)
        returned = [t for t in back.transfers if t.kind is TransferKind.SWAP_IN]  # the others are still cached
        assert {t.request_id for t in returned} == {name}
        expect(rows.first).to_have_text(f"step {back.step_id}: {name} swapped in {len(returned)} blocks")
        expect(panel(page, "Memory traffic").locator("[data-part=movedIn]")).to_have_text(str(len(returned)))
        assert shown_states(page) == states_in(service.pool_snapshot())


def test_contiguous_layout_draws_runs_and_counts_both_wastes(
    tiny_model: Path, serve: Serve, open_page: OpenPage
) -> None:
    with engine(tiny_model, num_blocks=20, kv_layout="contiguous") as (service, records):
        page = open_page().page
        open_map(page, serve(build_map_app(service)).url)
        for first, max_tokens in ((3, 68), (40, 6), (80, 68)):  # reserve 6, 2 and 6 blocks; six are left
            submit(service, 20, max_tokens, first=first)
        wanting = submit(service, 20, 100, first=120)  # eight, when the middle one has ended: 2 + 6 are free
        record = run_until(service, records, lambda r: r.external_waste_blocks > 0 and r.num_running == 2)
        wait_for_step(page, record.step_id)
        snapshot = service.pool_snapshot()
        assert shown_states(page) == states_in(snapshot)
        for state in record.requests:
            if state.status is RequestStatus.RUNNING:
                blocks = [block.block_id for block in snapshot.blocks if state.request_id in block.request_ids]
                assert len(blocks) == 6
                assert all(b == a + 1 for a, b in pairwise(blocks))
                chip(page, state.request_id).click()
                expect(page.locator("#wb-block-map [data-part=stripNote]")).to_have_text("6 blocks in 1 physical run")
        assert record.internal_waste_slots > 0
        assert record.external_waste_blocks == 8
        expect(page.locator("#wb-block-map [data-part=wasteSlots]")).to_have_text(
            f"{record.internal_waste_slots} slots"
        )
        expect(page.locator("#wb-block-map [data-part=externalWaste]")).to_have_text("8")
        expect(page.locator("#wb-block-map [data-part=wasteNote]")).to_contain_text("Contiguous layout: every request")
        expect(page.locator("#wb-block-map [data-part=contiguousBox]")).to_be_hidden()
        (deferral,) = [e for e in record.explanations if e.request_id == wanting]
        queue = panel(page, "Queue").locator("[data-part=queueRows] > div")
        expect(queue.locator("p").first).to_have_text(explain(deferral))


def test_waiting_requests_tell_the_rule_and_the_numbers_of_the_record(
    tiny_model: Path, serve: Serve, open_page: OpenPage
) -> None:
    with engine(tiny_model, num_blocks=16) as (service, records):
        page = open_page().page
        open_map(page, serve(build_map_app(service)).url)
        submit(service, 150, 40)
        waiting = [submit(service, 120, 40, first=60), submit(service, 30, 40, first=90)]
        run_steps(service, 3)
        record = records[-1]
        wait_for_step(page, record.step_id)
        told = {e.request_id: e for r in records for e in r.explanations}
        rows = panel(page, "Queue").locator("[data-part=queueRows] > div")
        expect(rows.locator("p:not(.wb-then)")).to_have_text([explain(told[name]) for name in waiting])
        numbers = told[waiting[0]].numbers
        expect(rows.first).to_contain_text(f"{numbers['needed_blocks']} / {numbers['free_blocks']} free")


def choose(page: Page, elem_id: str, option: str) -> None:
    page.click(f"{elem_id} input")
    page.get_by_role("option", name=option, exact=True).click()


def test_memory_settings_are_applied_by_one_reload_and_shown(tiny_model: Path, open_page: OpenPage) -> None:
    with running(preset(str(tiny_model), num_blocks=64)) as (service, server):
        service.wait_ready(100)
        page = visit(open_page, server)
        before, epoch = service.config, service.status.epoch
        choose(page, "#wb-preemption-mode", "Swap")
        page.fill("#wb-swap-space input", "0.25")
        choose(page, "#wb-kv-layout", "Contiguous")
        choose(page, "#wb-kv-placement", "Best fit")
        expect(page.locator("#wb-apply")).to_have_text("Apply (4 changes, reload)")
        expect(page.locator("#wb-apply-note")).to_contain_text("the prefix cache and beam search are not active")
        page.click("#wb-apply")
        expect(page.locator("#wb-apply-note")).to_have_text("Applied.")
        wait_until(lambda: service.status.epoch == epoch + 1)
        assert service.status.num_swap_blocks > 0
        assert "shares no blocks" in service.status.notices[0]
        assert service.config == replace(
            before, preemption_mode="swap", swap_space=0.25, kv_layout="contiguous", kv_placement="best_fit"
        )
        page.reload()
        expect(page.locator("#wb-kv-layout input")).to_have_value("Contiguous")
        expect(page.locator("#wb-swap-space input")).to_have_value("0.25")


def test_policies_are_applied_by_one_reload_and_in_force(tiny_model: Path, open_page: OpenPage) -> None:
    with running(preset(str(tiny_model), num_blocks=64)) as (service, server):
        service.wait_ready(100)
        page = visit(open_page, server)
        before, epoch = service.config, service.status.epoch
        choose(page, "#wb-scheduling-policy", "Priority")
        choose(page, "#wb-admission-policy", "Best fit")
        expect(page.locator("#wb-apply")).to_have_text("Apply (2 changes, reload)")
        page.click("#wb-apply")
        expect(page.locator("#wb-apply-note")).to_have_text("Applied.")
        wait_until(lambda: service.status.epoch == epoch + 1)
        assert service.config == replace(before, scheduling_policy="priority", admission_policy="best_fit")
        in_force = service._call(lambda core: (core.scheduler.policy.name, core.scheduler.admission.policy.name))
        assert in_force == ("priority", "best_fit")
        page.reload()
        expect(page.locator("#wb-scheduling-policy input")).to_have_value("Priority")


@pytest.mark.parametrize("width", [1280, 390])
def test_memory_controls_fit_the_sidebar(tiny_model: Path, open_page: OpenPage, width: int) -> None:
    with running(preset(str(tiny_model), num_blocks=64)) as (service, server):
        service.wait_ready(100)
        page = visit(open_page, server, width=width)
        cut = page.evaluate(
            """() => ['preemption-mode', 'swap-space', 'kv-layout', 'kv-placement'].filter(name => {
              const node = document.getElementById(`wb-${name}`);
              const label = node.querySelector('span[data-testid=block-info]');
              const box = node.getBoundingClientRect();
              const range = document.createRange(); range.selectNodeContents(label);
              return !(box.width > 100 && range.getBoundingClientRect().right <= box.right
                && label.scrollWidth <= box.width + 1); })"""
        )
        assert cut == []
