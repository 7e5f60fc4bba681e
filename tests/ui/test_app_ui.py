"""The page as it is built, before any browser sees it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ui.scripted_service import ScriptedService
from workbench.presets import load_presets
from workbench.ui.app_ui import build_ui, page_options


@pytest.fixture(scope="module")
def page() -> Any:
    service: Any = ScriptedService()
    return build_ui(service, load_presets(), "default")


def test_page_holds_no_connection_open_for_its_session(page: Any):
    """A browser grants a host six connections: one for each of five tabs would leave a single one."""
    assert page.get_config_file()["connect_heartbeat"] is False


def test_page_queues_in_the_engine_and_not_in_gradio(page: Any):
    streaming = [fn for fn in page.fns.values() if fn.types_generator]
    assert len(streaming) == 9  # send, three suggestions, Regenerate, drop the oldest turns, Apply, Run in turn, Race
    assert {fn.concurrency_limit for fn in streaming} == {None}


def test_page_exposes_no_handler_as_an_api(page: Any):
    assert {fn.api_visibility for fn in page.fns.values()} == {"private"}


def test_page_tells_no_widget_of_an_events_progress(page: Any):
    """The browser would copy the value of each that is told, at every update of an answer."""
    told = {fn.name: fn.show_progress_on for fn in page.fns.values()}
    assert "send" in told
    assert {name: widgets for name, widgets in told.items() if widgets != []} == {}


def test_page_has_a_tab_only_for_what_exists(page: Any):
    tabs = [block.label.key for block in page.blocks.values() if type(block).__name__ == "Tab"]
    assert tabs == ["Chat", "Blocks", "Timeline", "Speculation"]


def test_page_options_keep_the_page_on_its_own_host():
    options = page_options()
    assert options["footer_links"] == []
    assert options["run_history"] is False
    assert "http://" not in options["css"]
    assert "https://" not in options["css"]
    assert "googleapis" not in str(options["theme"]._get_theme_css()) + "".join(options["theme"]._font_css)


def test_two_pages_share_nothing():
    first, second = (build_ui(ScriptedService(), load_presets(), "default") for _ in range(2))  # type: ignore[arg-type]
    handlers = [{id(fn.fn) for fn in page.fns.values() if fn.fn is not None} for page in (first, second)]
    assert handlers[0] & handlers[1] == set()


def test_page_offers_to_save_presets_only_where_it_may(tmp_path: Any):
    def ids(**options: Any) -> set[str]:
        service: Any = ScriptedService()
        blocks = build_ui(service, load_presets(), "default", **options).blocks.values()
        return {str(getattr(block, "elem_id", None)) for block in blocks}

    assert "wb-preset-save" in ids(preset_directory=tmp_path)
    assert "wb-preset-save" not in ids()
