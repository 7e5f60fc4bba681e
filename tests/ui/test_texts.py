"""Every text of the page is in both languages: nothing bypasses the table, and nothing in it is left over."""

from __future__ import annotations

import ast
import html
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ui.scripted_service import ScriptedService
from workbench.presets import load_presets
from workbench.telemetry.records import CacheMiss, Decision, Explanation, FinishReason, Reason, RequestStatus
from workbench.ui.app_ui import build_ui
from workbench.ui.every_language import EveryLanguage
from workbench.ui.localized import texts_for
from workbench.ui.phases import PhaseKind
from workbench.ui.texts import CHINESE, CHINESE_TABLE, ENGLISH, language_of

UI = Path(__file__).parents[2] / "workbench" / "ui"
PRESETS = Path(__file__).parents[2] / "presets"
SCRIPTS = sorted((UI / "components").glob("*.js"))
TEMPLATES = sorted((UI / "components").glob("*.html"))
LETTERS = re.compile(r"[A-Za-z]{2}")
CHINESE_CHARACTER = re.compile(r"[\u4e00-\u9fff]")

SAME_IN_BOTH = {
    "Enter",
    "Esc",
    "JSON",
    "PNG",
    "Markdown",
    "TTFT",
    "W A S D",
    "A D",
    "W S",
    "Switch to English",
    "Inference Workbench",
}
"""Names, keys and units: the same in every language."""
DATA = {"MACHINE"}
"""What stands in a template in the place of something that is no text."""


def spoken_in_python() -> set[str]:
    """Constants that are handed to `say`, `localized`, or to the openings and kinds that are."""
    found: set[str] = set()
    for path in sorted(UI.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _name(node.func) in ("say", "localized") and node.args:
                found |= set(_constants(node.args[0]))
    return found


def _constants(argument: ast.expr) -> Iterator[str]:
    """Texts that an argument can be; what is put together at run time is seen on the built page."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and argument.value.strip():
        yield argument.value
    elif isinstance(argument, ast.IfExp):
        yield from (*_constants(argument.body), *_constants(argument.orelse))


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def spoken_in_scripts() -> set[str]:
    """Constants that are handed to `text`, and the words of the timeline."""
    found: set[str] = set()
    for path in SCRIPTS:
        source = path.read_text(encoding="utf-8")
        found |= {json.loads(literal) for literal in re.findall(r'\btext\(("(?:[^"\\]|\\.)*")', source)}
        if path.name == "timeline_words.js":
            found |= {
                json.loads(f'"{words}"') for words in re.findall(r'^    "[^"]+": "((?:[^"\\]|\\.)*)"', source, re.M)
            }
    return {text for text in found if LETTERS.search(text)}


def spoken_in_templates() -> set[str]:
    found: set[str] = set()
    for path in TEMPLATES:
        source = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'(?:title|aria-label|placeholder)="([^"]+)"', source))
        found |= {text.strip() for text in re.split(r"<[^>]+>", source)}
    return {html.unescape(text) for text in found if LETTERS.search(text) and text not in DATA}


def spoken_by_gradio() -> set[str]:
    """Texts of the components of the built page."""
    return {json.loads(f'"{key}"') for value in _props(_page()) for key in LOCALIZED.findall(str(value))}


LOCALIZED = re.compile(r'__i18n__\{"__type__": "translation_metadata", "key": "((?:[^"\\]|\\.)*)"\}')


def _page() -> Any:
    service: Any = ScriptedService()
    return build_ui(service, load_presets(), "default", preset_directory=PRESETS)


def _props(page: Any) -> Iterator[Any]:
    for block in page.blocks.values():
        for name in ("label", "info", "placeholder", "value"):
            value = getattr(block, name, None)
            if name != "value" or type(block).__name__ in ("Button", "HTML"):
                yield value
        yield from (label for label, _ in getattr(block, "choices", None) or ())


def spoken_in_presets() -> set[str]:
    items = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(PRESETS.glob("*.toml"))]
    return {item[name] for item in items for name in ("title", "description")}


def spoken_codes() -> set[str]:
    """Codes that the page says as they are, each an English word."""
    states = {each.value for each in RequestStatus} | {
        each.value for each in PhaseKind if each is not PhaseKind.LOADING
    }
    return states | {each.value for each in FinishReason} | {"target"}


def all_spoken() -> set[str]:
    return (
        spoken_in_python()
        | spoken_in_scripts()
        | spoken_in_templates()
        | spoken_by_gradio()
        | spoken_in_presets()
        | spoken_codes()
    )


def placeholders(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text))


def test_every_text_is_in_the_table():
    missing = {text for text in all_spoken() if text not in CHINESE_TABLE and text not in SAME_IN_BOTH}
    assert sorted(text for text in missing if LETTERS.search(re.sub(r"\{\w+\}", "", text))) == []


def test_both_languages_have_the_same_placeholders():
    assert {
        english for english, chinese in CHINESE_TABLE.items() if placeholders(english) != placeholders(chinese)
    } == set()


def test_table_is_chinese():
    assert {
        english for english, chinese in CHINESE_TABLE.items() if not CHINESE_CHARACTER.search(chinese)
    } <= SAME_IN_TABLE | SAME_IN_BOTH


SAME_IN_TABLE = {
    "; ",
    "{methods}: {reason}",
    "{method}, K = {count}",
    "{part} of {whole}",
    "{needed}, {run}",
    "{cause} {needed}",
    "{words}",
}
"""Texts of which only the punctuation differs."""


def test_table_holds_nothing_that_nobody_says():
    loading = [*(UI.parent / "engine").glob("*.py"), *(UI.parent / "models").glob("*.py")]  # name the phases of a load
    sources = [path.read_text(encoding="utf-8") for path in (*SCRIPTS, *UI.rglob("*.py"), *loading)]
    everything = "\n".join(re.sub(r'"\s*\n\s*f?"', "", source) for source in sources)
    left_over = {
        text
        for text in CHINESE_TABLE.keys() - all_spoken()
        if json.dumps(text, ensure_ascii=False)[1:-1] not in everything
    }
    assert {text for text in left_over if not re.fullmatch(r"\{count\} [a-z ]+", text)} == set()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_says_nothing_that_bypasses_the_table(path: Path):
    """Sentences as string literals stand inside `text(…)`; errors of programs, which go to the console, may not."""
    source = re.sub(r"/\*.*?\*/|^\s*//.*$", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    source = re.sub(r'^    "[^"]+": ".*",$', "", source, flags=re.M) if path.name == "timeline_words.js" else source
    source = re.sub(r"\btext\(\s*\"(?:[^\"\\]|\\.)*\"", "", source)
    source = re.sub(r"(?:Error|assert)\([^;]*;", "", source)
    sentences = re.findall(r'"([A-Z][a-z]+(?: [a-z]+)+[^"]*|[a-z]+ [a-z]+ [a-z][^"]*)"', source)
    assert [
        text for text in sentences if "wb-" not in text and text not in {"use strict", *CHINESE_TABLE, *SAME_IN_BOTH}
    ] == []
    templates = re.findall(r"`([^`]*)`", source)
    words = [re.sub(r"\$\{[^}]*\}", "", template) for template in templates]
    assert [text for text in words if re.search(r"[a-z]{3,} [a-z]{3,}", text) and "wb-" not in text] == []


def test_no_string_of_a_component_holds_two_texts_of_which_gradio_translates_one():
    assert [value for value in _props(_page()) if len(LOCALIZED.findall(str(value))) > 1] == []


def test_components_of_gradio_have_no_text_that_bypasses_the_table():
    shown = {re.sub(r"<[^>]*>", "", LOCALIZED.sub("", str(value or ""))) for value in _props(_page())}
    assert {text for text in shown if LETTERS.search(text)} <= SAME_IN_BOTH


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("decision", list(Decision))
def test_decisions_are_explained_in_chinese_alone(decision: Decision, reason: Reason):
    english, chinese = (
        EveryLanguage().explain(Explanation("r5", decision, reason, {"swapped_blocks": 2}, "r9")).split("\n")
    )
    assert not CHINESE_CHARACTER.search(english)
    assert not LETTERS.search(chinese.replace("r5", "").replace("r9", ""))


@pytest.mark.parametrize("miss", list(CacheMiss))
def test_cache_misses_are_explained_in_chinese_alone(miss: CacheMiss):
    english, chinese = EveryLanguage().explain_miss(miss, 290).split("\n")
    assert LETTERS.search(english)
    assert not LETTERS.search(chinese)


def test_cache_miss_without_a_reason_says_nothing():
    assert EveryLanguage().explain_miss(None) == ""


def test_texts_fill_in_numbers_and_names():
    assert ENGLISH("{count} blocks", count=2048) == "2,048 blocks"
    assert ENGLISH("{count} blocks", count=None) == "– blocks"
    assert CHINESE("queued #{place}", place=3) == CHINESE_TABLE["queued #{place}"].replace("{place}", "3")


@pytest.mark.parametrize(
    ("cookies", "accepted", "language"),
    [
        ("", "", "en"),
        ("", "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("", "en-US,en;q=0.9,zh;q=0.5", "en"),
        ("wb-language=zh", "en-US", "zh"),
        ("a=b; wb-language=en", "zh-CN", "en"),
        ("wb-language=xx", "zh-CN", "zh"),
        ("wb-language=\x01;;=", "en", "en"),
    ],
)
def test_language_is_what_was_chosen_and_else_the_browsers(cookies: str, accepted: str, language: str):
    assert language_of(cookies, accepted) == language
    request: Any = SimpleNamespace(headers={"cookie": cookies, "accept-language": accepted})
    assert texts_for(request).language == language
