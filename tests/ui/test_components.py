"""What our canvas components promise of themselves before a browser sees them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.server.fake_service import FakeService
from workbench.errors import EngineStoppedError
from workbench.ui.components import assets
from workbench.ui.components.block_map import block_map, compact_map
from workbench.ui.components.chat_tools import chat_tools
from workbench.ui.components.header_strip import header_strip, status_line
from workbench.ui.components.machine import describe_machine
from workbench.ui.components.timeline import timeline


def test_assets_hold_every_script_and_style_file() -> None:
    files = {path.name for path in assets.HERE.iterdir()}
    assert {name for name in files if name.endswith(".js")} == set(assets.SCRIPTS)
    assert {name for name in files if name.endswith(".css")} == set(assets.STYLES)


def test_assets_name_no_other_host_and_end_the_script_once() -> None:
    css, head = assets.ui_assets()
    assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", css + head) == []
    assert re.findall(r"</script|<!--", head) == ["</script"]


@pytest.mark.parametrize("name", ["block_map", "chat_tools", "compact_map", "header", "status_line", "timeline"])
def test_template_is_static(name: str) -> None:
    assert re.findall(r"\$\{|\{\{|`|@children", assets.template(name)) == []


def test_components_carry_ids_and_no_value() -> None:
    components = [block_map(FakeService()), compact_map(), chat_tools(), header_strip(), status_line(), timeline()]
    ids = ["wb-block-map", "wb-compact-map", "wb-chat-tools", "wb-header", "wb-status-line", "wb-timeline"]
    assert [c.elem_id for c in components] == ids
    assert [c.value for c in components] == [None] * 6


def test_block_details_give_the_tokens_of_a_block() -> None:
    service = FakeService()
    service.engine.add(20, 5)
    service.step()
    details = block_map(service).block_details(1)
    assert (details["request_ids"], details["first_position"], details["num_filled"]) == (("r1",), 16, 4)
    assert details["tokens"] == (" t16", " t17", " t18", " t19")


def test_block_details_hide_the_text_when_told_to() -> None:
    service = FakeService()
    service.engine.add(20, 5)
    service.step()
    details = block_map(service, show_token_text=False).block_details(1)
    assert (details["tokens"], details["token_ids"], details["is_hidden"]) == (["▪", "▪", "▪", "▪"], [], True)


@pytest.mark.parametrize("error", [EngineStoppedError("the engine is not loaded"), IndexError("no such block")])
def test_block_details_say_why_they_cannot_be_had(error: Exception) -> None:
    class Stopped:
        def block_details(self, block_id: int) -> None:
            raise error

    assert block_map(Stopped()).block_details(7) == {"block_id": 7, "error": str(error)}


@pytest.mark.parametrize(
    ("cpu_info", "name"),
    [
        ("model name\t: AMD EPYC 7B13\n", "AMD EPYC 7B13"),
        ("model name\t: Intel(R) Xeon(R) CPU @ 2.20GHz\n", "Intel Xeon"),
        ("model name\t: AMD EPYC 7763 64-Core Processor\n", "AMD EPYC 7763 64-Core"),
    ],
)
def test_machine_is_described_by_model_and_cores(tmp_path: Path, cpu_info: str, name: str) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(cpu_info)
    assert re.fullmatch(rf"{re.escape(name)}, \d+ cores?", describe_machine(path))


def test_machine_without_a_model_name_is_described_by_its_architecture(tmp_path: Path) -> None:
    assert re.fullmatch(r"\S+, \d+ cores?", describe_machine(tmp_path / "absent"))
