"""Who may import whom. The table below is the architecture; a file without a row in it fails."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("kernels", "workbench", "app")

BASE = ("workbench.config", "workbench.errors")
DATA = (*BASE, "workbench.sampling_params", "workbench.speculation_params", "workbench.telemetry.records")
DOOR = (
    *DATA,
    "workbench.engine.service",
    "workbench.engine.messages",
    "workbench.llm",
    "workbench.presets",
    "workbench.telemetry",
    "workbench.models.tokenizer",
    "workbench.speculation.statistics",
)
PAGE_LIBRARIES = ("gradio", "plotly", "fastapi", "starlette", "uvicorn", "websockets")


@dataclass(frozen=True)
class Rule:
    """What the modules below `prefix` may import, besides the standard library and each other."""

    prefix: str
    ours: tuple[str, ...]
    only: tuple[str, ...] | None = None
    """Third-party packages allowed; None allows all but `never`."""
    never: tuple[str, ...] = ()


RULES = (
    Rule("kernels", (), only=("torch", "numpy", "numba", "llvmlite", "triton")),
    Rule("workbench", ("workbench.llm", "workbench.sampling_params", "workbench.speculation_params"), only=()),
    Rule("workbench.errors", (), only=()),
    Rule("workbench.config", ("workbench.errors",), only=("msgspec",)),
    Rule("workbench.sampling_params", ("workbench.errors",), only=("msgspec",)),
    Rule("workbench.speculation_params", ("workbench.errors",), only=("msgspec",)),
    Rule("workbench.telemetry.records", (), only=("msgspec",)),
    Rule("workbench.telemetry.recorder", ("workbench.telemetry.records",), only=()),
    Rule("workbench.telemetry", DATA, never=("torch", *PAGE_LIBRARIES)),
    Rule(
        "workbench.presets",
        (*BASE, "workbench.sampling_params", "workbench.speculation_params"),
        only=("msgspec",),
    ),
    Rule("workbench.foreign_kernels", (), only=()),
    Rule("workbench.models", ("kernels", *BASE), never=PAGE_LIBRARIES),
    Rule("workbench.speculation", ("kernels", *BASE, "workbench.speculation_params"), never=PAGE_LIBRARIES),
    # Programs that make data for the package above, by driving the engine. Nothing else imports them; see PROGRAMS.
    Rule(
        "workbench.speculation.train",
        ("kernels", "workbench.engine", "workbench.models", "workbench.speculation", *DATA),
        never=PAGE_LIBRARIES,
    ),
    Rule("workbench.quantization", ("kernels", *BASE), never=PAGE_LIBRARIES),
    Rule(
        "workbench.engine",
        ("kernels", "workbench.models", "workbench.speculation", "workbench.telemetry.recorder", *DATA),
        never=PAGE_LIBRARIES,
    ),
    Rule("workbench.outputs", DATA, only=("msgspec",)),
    Rule("workbench.llm", (*DOOR, "workbench.outputs"), never=PAGE_LIBRARIES),
    Rule("workbench.server", DOOR, never=("torch", "gradio", "plotly")),
    Rule("workbench.ui", DOOR, never=("torch",)),
    Rule(
        "workbench.bench",
        (*DOOR, "workbench.foreign_kernels", "workbench.models.default_model", "workbench.models.gguf_file"),
    ),
    # What it measures lies behind the door: kernels, and the engine's own step around them.
    Rule("workbench.bench.kernels", ("kernels", "workbench.engine", "workbench.models", "workbench.bench", *DOOR)),
    # The scheduler and the memory manager alone.
    Rule("workbench.bench.scheduler", ("workbench.engine", "workbench.bench", *DOOR), never=("torch",)),
    # What a server does for a page that watches.
    Rule("workbench.bench.telemetry", ("workbench.server", "workbench.bench", *DOOR)),
    Rule("workbench.bench.past_frames", ("workbench.server", "workbench.bench", *DOOR)),
    # What it measures is the whole workbench in a browser, over an engine that was recorded.
    Rule("workbench.bench.page", ("app", "workbench.engine", "workbench.server.listener", "workbench.bench", *DOOR)),
    Rule("app", ("kernels", "workbench")),
)

PROGRAMS = ("workbench.speculation.train",)
"""Packages of command-line programs: they see more than the package they lie in, so only they import themselves."""

TORCH_FREE = (
    "workbench.engine.request",
    "workbench.engine.block_key",
    "workbench.engine.block_pool",
    "workbench.engine.prefix_index",
    "workbench.engine.kv_cache_manager",
    "workbench.engine.policies",
    "workbench.engine.scheduler",
    "workbench.engine.scheduler_output",
)
LAZY = ("transformers", "bitsandbytes", "awq", "triton", "accelerate", "datasets", "ray")
DECLARED_AS = {"awq": "autoawq", "markdown_it": "markdown-it-py", "starlette": "fastapi", "llvmlite": "numba"}
"""Import name → its line in requirements.txt: the name there, or the package it is a fixed part of."""

NOT_OURS = {
    "workbench.bench.peer_workers": {"vllm", "openvino", "openvino_genai", "xllamacpp"},
    "workbench.bench.page": {"playwright"},
}
"""Modules → packages that they find in a peer's environment, or in that of the tests, never in `make run`'s."""


@dataclass(frozen=True)
class Import:
    name: str
    """Dotted name; for `from a import b` it is `a.b`, whether b is a module or not."""
    line: int
    is_lazy: bool
    """Inside a function, so it costs nothing until the function runs."""


def imports_of(tree: ast.Module) -> list[Import]:
    found: list[Import] = []

    def visit(node: ast.AST, is_lazy: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend(Import(alias.name, child.lineno, is_lazy) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = "." * child.level + (child.module or "")
                found.extend(Import(f"{base}.{alias.name}", child.lineno, is_lazy) for alias in child.names)
            elif is_type_checking(child):
                visit(child, is_lazy=True)
            else:
                visit(child, is_lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    visit(tree, is_lazy=False)
    return found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def is_below(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def rule_for(module: str) -> Rule | None:
    """The row with the longest prefix. `workbench` itself covers its __init__ only."""
    rows = [
        rule
        for rule in RULES
        if is_below(module, (rule.prefix,)) and (rule.prefix != "workbench" or module == "workbench")
    ]
    return max(rows, key=lambda rule: len(rule.prefix), default=None)


def violations(module: str, source: str) -> list[str]:
    """Every broken rule in one module, as `module:line: what`."""
    tree = ast.parse(source)
    rule = rule_for(module)
    if rule is None:
        return [f"{module}: no row in RULES: decide where it belongs"]
    found = []
    for item in imports_of(tree):
        what = import_fault(module, rule, item)
        if what:
            found.append(f"{module}:{item.line}: {what}")
    if module != "workbench.config":
        found.extend(
            f"{module}:{line}: reads the environment; only workbench.config may" for line in environment_uses(tree)
        )
    if module == "kernels":
        found.extend(f"kernels:{node.lineno}: __init__ holds code" for node in tree.body if not is_docstring(node))
    return found


def import_fault(module: str, rule: Rule, item: Import) -> str | None:
    package = item.name.partition(".")[0]
    if item.name.startswith("."):
        return f"relative import {item.name}: write it out"
    if package in sys.stdlib_module_names:
        return None
    if is_below(item.name, PROGRAMS) and not is_below(module, PROGRAMS):
        return f"may not import {item.name}"
    if package in OURS:
        own = rule.prefix if rule.prefix != "workbench" else "workbench.__init__"
        return None if is_below(item.name, (own, *rule.ours)) else f"may not import {item.name}"
    if rule.only is not None and package not in rule.only:
        return f"may not import {package}"
    if package in rule.never or (package == "torch" and is_below(module, TORCH_FREE)):
        return f"may not import {package}"
    if package in LAZY and not item.is_lazy:
        return f"imports {package} at module level; import it inside the function that needs it"
    return None


def environment_uses(tree: ast.Module) -> list[int]:
    names = ("os.environ", "os.getenv", "os.putenv", "os.environb")
    used = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node) in names]
    return used + [item.line for item in imports_of(tree) if item.name in names]


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def our_files() -> list[Path]:
    return [ROOT / "app.py", *sorted(ROOT.glob("kernels/**/*.py")), *sorted(ROOT.glob("workbench/**/*.py"))]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_imports_follow_the_architecture():
    found = [line for path in our_files() for line in violations(module_name(path), path.read_text(encoding="utf-8"))]

    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("kernels.ops", "import workbench.config", "may not import workbench.config"),
        ("kernels.ops", "import gradio", "may not import gradio"),
        ("kernels", "__version__ = '1'", "__init__ holds code"),
        ("kernels", "import torch", "__init__ holds code"),
        ("workbench.config", "import torch", "may not import torch"),
        ("workbench.config", "from workbench import llm", "may not import workbench.llm"),
        (
            "workbench.telemetry.records",
            "from workbench.config import EngineConfig",
            "may not import workbench.config.EngineConfig",
        ),
        ("workbench.telemetry.frames", "import workbench.engine.core", "may not import workbench.engine.core"),
        ("workbench.models.llama", "from workbench.engine import request", "may not import workbench.engine.request"),
        ("workbench.engine.core", "def f():\n    import gradio", "may not import gradio"),
        (
            "workbench.engine.core",
            "from workbench.telemetry import latency",
            "may not import workbench.telemetry.latency",
        ),
        ("workbench.engine.scheduler", "def f():\n    import torch.nn", "may not import torch"),
        ("workbench.engine.policies.fcfs", "from torch import nn", "may not import torch"),
        (
            "workbench.ui.pages.chat",
            "from workbench.engine.core import EngineCore",
            "may not import workbench.engine.core.EngineCore",
        ),
        ("workbench.server.feed", "from workbench.ui import build", "may not import workbench.ui.build"),
        ("workbench.models.loader", "import transformers", "imports transformers at module level"),
        ("workbench.models.loader", "if True:\n    from triton import jit", "imports triton at module level"),
        ("workbench.models.loader", "from . import llama", "relative import ..llama"),
        ("workbench.models.loader", "import os\nos.environ['A'] = '1'", "reads the environment"),
        ("workbench.models.loader", "from os import getenv", "reads the environment"),
        (
            "workbench.speculation.eagle",
            "from workbench.engine import core",
            "may not import workbench.engine.core",
        ),
        (
            "workbench.speculation.eagle",
            "from workbench.speculation.train import prompts",
            "may not import workbench.speculation.train.prompts",
        ),
        ("workbench.novelty", "", "no row in RULES"),
    ],
)
def test_checker_notices_each_kind_of_violation(module: str, source: str, fault: str):
    assert len(violations(module, source)) >= 1
    assert fault in violations(module, source)[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kernels.cpu.linear", "import numba\nimport torch\nfrom kernels.ops import Ops"),
        ("workbench.models.loader", "def f():\n    import transformers"),
        ("workbench.models.loader", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import transformers"),
        ("workbench.engine.core", "import torch\nfrom workbench.engine.scheduler import Scheduler"),
        ("workbench.ui.pages.chat", "import gradio\nfrom workbench.engine.service import EngineService"),
        ("workbench.config", "import os\nos.environ.get('A')"),
        ("workbench.speculation.train.generate", "from workbench.engine.core import EngineCore"),
    ],
)
def test_checker_lets_the_intended_imports_pass(module: str, source: str):
    assert violations(module, source) == []


def test_memory_manager_and_scheduler_run_without_torch():
    script = (
        f"import importlib, sys\nfor m in {TORCH_FREE!r}: importlib.import_module(m)\nprint('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (ran.stdout.strip(), ran.stderr) == ("False", "")


def test_requirements_name_every_imported_package():
    declared = {
        re.split(r"[<>=!~; ]", line)[0].lower() for line in (ROOT / "requirements.txt").read_text().splitlines() if line
    }
    imported = {
        item.name.partition(".")[0]
        for path in our_files()
        for item in imports_of(ast.parse(path.read_text(encoding="utf-8")))
        if not item.name.startswith(".")
        and item.name.partition(".")[0] not in NOT_OURS.get(module_name(path).rpartition(".")[0], ())
    }
    third_party = {DECLARED_AS.get(name, name) for name in imported - set(sys.stdlib_module_names) - set(OURS)}

    assert third_party - declared == set()
