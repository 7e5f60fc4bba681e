"""Sharing, copies, swaps and waste on the Blocks tab, and why a request waits.

Expected states come from the simulated engine, never from the feed under test.
"""

from __future__ import annotations

import msgspec
from playwright.sync_api import Page, expect

from tests.browser.map_page import (
    LAYOUT,
    MAP,
    OWNERS,
    OpenPage,
    Serve,
    bottom_pixel,
    build_map_app,
    check_pixels,
    check_shared_corners,
    chip,
    open_map,
    panel,
    rest_pointer,
    rgb,
    shown_states,
    wait_for_step,
)
from tests.browser.running_server import DEADLINE_MS
from tests.server.fake_service import FakeService
from tests.server.live_client import states_in
from workbench.telemetry.records import RequestStatus, TransferKind
from workbench.ui.explain import explain

expect.set_options(timeout=DEADLINE_MS)

COPIED, SWAPPED = "b79fff", "ff6fae"
"""Flashes in the dark theme."""


def forked() -> FakeService:
    """Two answers that share the first two blocks of their prompt; the third was copied."""
    service = FakeService(num_blocks=64)
    service.engine.add(40, 100)
    service.engine.add(20, 100)
    service.step()
    service.engine.fork("r1")
    service.step()
    return service


def test_selecting_either_owner_lights_the_shared_blocks(serve: Serve, open_page: OpenPage) -> None:
    service = forked()
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    wait_for_step(page, 1)
    tables = {r.request_id: r.table for r in service.engine.running}
    assert tables == {"r1": [0, 1, 5], "r2": [3, 4], "r1.1": [0, 1, 2]}
    for name, slot in (("r1", 0), ("r1.1", 2)):
        chip(page, name).click()
        rest_pointer(page)
        lit = [block for block in range(6) if tuple(bottom_pixel(page, block)) == rgb(OWNERS[slot])]
        assert lit == sorted(tables[name]), name
    assert check_shared_corners(page) == [0, 1]


def test_strip_of_the_second_owner_shows_what_it_shares_and_with_whom(serve: Serve, open_page: OpenPage) -> None:
    service = forked()
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    wait_for_step(page, 1)
    chip(page, "r1.1").click()
    note = page.locator("#wb-block-map [data-part=stripNote]")
    expect(note).to_have_text("3 blocks in 1 physical run, 2 shared with r1")
    expect(panel(page, "Request details")).to_contain_text("3 (2 shared)")
    expect(panel(page, "Request details")).to_contain_text("one of 2 of r1")
    page.locator("#wb-block-map canvas[data-part=strip]").hover(position={"x": 38, "y": 20})
    expect(page.locator("#wb-block-map .wb-tip")).to_contain_text("Block 0")
    expect(page.locator("#wb-block-map .wb-tip")).to_contain_text("r1, r1.1")


def test_panel_of_a_shared_block_lists_all_owners_in_their_colours(serve: Serve, open_page: OpenPage) -> None:
    service = forked()
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    wait_for_step(page, 1)
    chip(page, "r1.1").click()
    cell = page.evaluate(f"{LAYOUT}.center(1)")
    page.locator(MAP).click(position={"x": cell[0], "y": cell[1]})
    owners = panel(page, "Block details").locator("[data-part=owners] .wb-chip")
    expect(owners).to_have_text(["r1", "r1.1"])
    colors = owners.locator(".wb-sw").evaluate_all("nodes => nodes.map(n => getComputedStyle(n).backgroundColor)")
    assert colors == ["rgb(94, 153, 253)", "rgb(244, 94, 150)"]
    assert page.evaluate("wb.store.selection.request") == "r1.1", "the selected one of the owners stays selected"


def test_owners_follow_step_by_step_when_one_of_them_ends(serve: Serve, open_page: OpenPage) -> None:
    service = forked()
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    first = next(request for request in service.engine.running if request.request_id == "r1")
    first.max_tokens = first.num_output + 2
    for step in (2, 3, 4):
        record = service.step()
        wait_for_step(page, step)
        assert shown_states(page) == states_in(service.pool_snapshot()), record
    assert service.engine.state(0).request_ids == ("r1.1",)
    expect(chip(page, "r1")).to_have_count(0)


def test_copy_is_listed_and_counted(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    open_map(page, serve(build_map_app(forked())).url)
    traffic = panel(page, "Memory traffic")
    expect(traffic.locator("[data-part=trafficRows] p")).to_have_text(["step 1: r1 copied block 2 → 5 before writing"])
    expect(traffic.locator("[data-part=movedCopy]")).to_have_text("1")
    expect(page.locator("#wb-block-map [data-part=swapBox]")).to_be_hidden()


def run_until_swapped(service: FakeService) -> str:
    """Two requests outgrow the pool. Returns the one that had to go."""
    service.engine.add(500, 200)
    service.engine.add(500, 200)
    while not any(t.kind is TransferKind.SWAP_OUT for t in service.engine.transfers):
        service.step()
    return service.engine.transfers[0].request_id


def test_swap_shows_in_totals_traffic_chips_and_queue(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64, num_swap_blocks=100)
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    name = run_until_swapped(service)
    (held,) = service.engine.waiting
    assert (held.request_id, held.status) == (name, RequestStatus.SWAPPED)
    count, step = held.num_swapped, service.engine.step_id
    wait_for_step(page, step)
    box = page.locator("#wb-block-map [data-part=swapBox]")
    expect(box.locator("[data-part=swapText]")).to_have_text(f"{count} of 100 blocks")
    expect(panel(page, "Memory traffic").locator("[data-part=trafficRows] p")).to_have_text(
        [f"step {step}: {name} swapped out {count} blocks"]
    )
    expect(panel(page, "Memory traffic").locator("[data-part=movedOut]")).to_have_text(str(count))
    expect(chip(page, name)).to_have_text(f"{name}swapped")
    (preemption,) = service.engine.explanations
    row = panel(page, "Queue").locator("[data-part=queueRows] > div")
    expect(row.locator("p").first).to_have_text(explain(preemption))
    service.step()
    wait_for_step(page, step + 1)
    expect(row.locator("p").first).to_have_text(explain(service.engine.explanations[0]))
    expect(row.locator("p").last).to_have_text(f"Step {step}, {explain(preemption)}")
    chip(page, name).click()
    expect(panel(page, "Request details")).to_contain_text(f"{count} blocks")


def test_copied_and_swapped_cells_flash_in_their_own_colour_unless_motion_is_reduced(
    serve: Serve, open_page: OpenPage
) -> None:
    service = FakeService(num_blocks=64, num_swap_blocks=100)
    url = serve(build_map_app(service)).url
    moving, still = (open_page(reduced_motion=motion).page for motion in ("no-preference", "reduce"))
    for page in (moving, still):
        open_map(page, url)
        # Every flash is drawn as in its first moment and stays.
        page.evaluate(
            """() => { const draw = wb.mapCanvas.drawFlashes;
            wb.mapCanvas.drawFlashes = (g, view, options) => draw(g, view, options, 0); }"""
        )
    service.engine.add(40, 100)
    service.step()
    for page in (moving, still):
        wait_for_step(page, 0)
    service.engine.fork("r1")
    service.step()
    (copy,) = service.engine.transfers
    wait_for_color(moving, copy.target_id, COPIED)
    run_until_swapped(service)
    wait_for_step(moving, service.engine.step_id)
    wait_for_color(moving, service.engine.transfers[-1].source_id, SWAPPED)
    wait_for_step(still, service.engine.step_id)
    check_pixels(still, service.pool_snapshot())


def wait_for_color(page: Page, block: int, color: str) -> None:
    page.wait_for_function(
        f"""([block, color]) => {{ const layout = {LAYOUT}; const [x, y] = layout.at(block);
        const pixel = document.querySelector('{MAP}').getContext('2d').getImageData(x + 1, y + 1, 1, 1).data;
        return color.every((v, i) => Math.abs(v - pixel[i]) <= 1); }}""",
        arg=[block, rgb(color)],
    )


def test_swap_space_is_shown_before_the_first_step(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    service.status = msgspec.structs.replace(service.status, num_swap_blocks=2048)
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    expect(page.locator("#wb-block-map [data-part=swapText]")).to_have_text("0 of 2,048 blocks")


def test_waste_and_the_contiguous_reservation_are_the_engines_own_numbers(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    service.engine.add(20, 50)
    record = service.step()
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    assert record.internal_waste_slots == 12
    part = page.locator("#wb-block-map [data-part=wasteSlots]")
    expect(part).to_have_text("12 slots")
    expect(page.locator("#wb-block-map [data-part=waste]")).to_have_text("37.5 %")
    expect(page.locator("#wb-block-map [data-part=externalWaste]")).to_have_text("0")
    expect(page.locator("#wb-block-map [data-part=contiguousBlocks]")).to_have_text("5")
    expect(page.locator("#wb-block-map [data-part=contiguousAgainst]")).to_have_text("against 2")
    expect(page.locator("#wb-block-map [data-part=wasteNote]")).to_contain_text("External waste: free blocks in runs")


def test_queue_panel_names_each_waiting_request_with_its_rule(serve: Serve, open_page: OpenPage) -> None:
    service = FakeService(num_blocks=64)
    service.engine.add(320, 50)
    for _ in range(5):
        service.step()
    for num_tokens in (900, 30, *[20] * 9):
        service.engine.add(num_tokens, 50)
    service.step()
    page = open_page().page
    open_map(page, serve(build_map_app(service)).url)
    wait_for_step(page, 5)
    told = service.engine.explanations
    assert explain(told[0]) == "waiting: needs 58 blocks, 44 are free"
    rows = panel(page, "Queue").locator("[data-part=queueRows] > div")
    expect(rows.locator("p:not(.wb-then)")).to_have_text([explain(e) for e in told[:6]])
    expect(rows.first).to_contain_text("58 / 44 free")
    expect(panel(page, "Queue").locator("[data-part=queueMore]")).to_have_text("and 5 more")


def test_panels_teach_while_nothing_waits_and_nothing_moved(serve: Serve, open_page: OpenPage) -> None:
    page = open_page().page
    open_map(page, serve(build_map_app(FakeService())).url)
    expect(panel(page, "Queue")).to_contain_text("Nobody waits.")
    expect(panel(page, "Memory traffic")).to_contain_text("Ask for several answers to see blocks copied")
