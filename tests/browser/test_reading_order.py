"""What a screen reader hears of the page's order: its headings, and the names of settings apart from their tags."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import Open, ask, finish_reason, visit
from tests.browser.running_server import DEADLINE_MS, RunningServer
from workbench.engine.service import EngineService

pytestmark = pytest.mark.browser

expect.set_options(timeout=DEADLINE_MS)

HEADINGS = """() => [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')]
  .filter((node) => node.checkVisibility() && !node.closest('[aria-hidden=true], .wb-body'))
  .map((node) => [Number(node.tagName[1]), node.textContent.trim()])"""


def test_headings_go_down_one_level_at_a_time(tiny: tuple[EngineService, RunningServer], open_page: Open) -> None:
    page = visit(open_page, tiny[1], first_visit=True)
    for tab in ("Chat", "Blocks", "Timeline"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_function(f"({HEADINGS})().some(([level, text]) => level === 2 && text === '{tab}')")
        headings = page.evaluate(HEADINGS)
        levels = [level for level, _ in headings]
        assert headings[0] == [1, "Inference Workbench"]
        assert levels.count(1) == 1
        assert 3 in levels
        assert [text for (text, now), before in zip(headings[1:], levels, strict=False) if text > before + 1] == []


def names(page: Page, role: str) -> set[str]:
    """Accessible names of a role, as the browser itself computes them."""
    nodes: list[dict[str, Any]] = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    return {node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == role and "name" in node}


def test_tag_of_a_setting_stands_apart_in_its_name(tiny: tuple[EngineService, RunningServer], open_page: Open) -> None:
    page = visit(open_page, tiny[1])
    assert "Prefix cache (live)" in names(page, "checkbox")
    assert {"Engine (everyone)", "Sampling (yours only)"} <= {
        name.replace("▼", "").strip() for name in names(page, "button")
    }


@pytest.mark.parametrize("width", [1440, 390])
def test_no_line_of_an_answers_figures_begins_or_ends_with_their_separator(
    tiny: tuple[EngineService, RunningServer], open_page: Open, width: int
) -> None:
    page = visit(open_page, tiny[1], width=width)
    ask(page, "hello", max_tokens=8)
    expect(finish_reason(page)).to_have_text("length")
    dots = page.evaluate(
        """() => {
          const foot = document.querySelector('.wb-foot'), { left, right } = foot.getBoundingClientRect();
          const [, cut] = getComputedStyle(foot).clipPath.match(/ ([\\d.]+)px\\)$/);
          return [...foot.children].map((span) => {
            const dot = getComputedStyle(span, '::before'), after = getComputedStyle(span, '::after').content;
            const middle = span.getBoundingClientRect().left + parseFloat(dot.width) / 2;
            const isSeen = middle > left + Number(cut), isInside = middle < right;
            return { isFirst: span.offsetLeft === 0, isSeen, isInside, after };
          });
        }"""
    )
    assert {dot["after"] for dot in dots} == {"none"}
    assert all(dot["isInside"] for dot in dots)
    assert [dot["isSeen"] for dot in dots] == [not dot["isFirst"] for dot in dots]
    num_lines = sum(dot["isFirst"] for dot in dots)
    assert num_lines == 1 if width > 1000 else num_lines > 1
