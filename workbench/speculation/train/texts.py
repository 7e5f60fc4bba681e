"""Given texts that every CPython carries: its documentation, docstrings and source code."""

from __future__ import annotations

import ast
import re
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Final

from workbench.speculation.train.parts import Part, is_training_topic, part_of

SHOWN_ON_THE_PAGE: Final = frozenset({"execmodel"})
"""Topics that the page suggests as prompts, on which speed is shown."""

MODULES: Final = (
    *("_collections_abc", "_pydecimal", "_strptime", "abc", "argparse", "ast", "base64", "bdb", "bisect", "calendar"),
    *("cmd", "code", "codecs", "codeop", "colorsys", "compileall", "configparser", "contextlib", "copy", "copyreg"),
    *("csv", "dataclasses", "difflib", "dis", "doctest", "enum", "filecmp", "fileinput", "fnmatch", "fractions"),
    *("ftplib", "functools", "genericpath", "getopt", "getpass", "gettext", "glob", "graphlib", "gzip", "hashlib"),
    *("heapq", "hmac", "imaplib", "inspect", "ipaddress", "keyword", "linecache", "locale", "lzma", "mailbox"),
    *("mimetypes", "netrc", "ntpath", "nturl2path", "numbers", "operator", "optparse", "os", "pdb", "pickle"),
    *("pickletools", "pkgutil", "platform", "plistlib", "poplib", "posixpath", "pprint", "profile", "pstats", "pty"),
    *("py_compile", "pyclbr", "pydoc", "queue", "quopri", "random", "reprlib", "rlcompleter", "runpy", "sched"),
    *("secrets", "selectors", "shelve", "shlex", "shutil", "site", "smtplib", "socket", "socketserver", "ssl"),
    *("statistics", "string", "stringprep", "subprocess", "symtable", "tabnanny", "tarfile", "tempfile", "textwrap"),
    *("threading", "timeit", "token", "tokenize", "trace", "traceback", "tracemalloc", "types", "typing", "uuid"),
    *("warnings", "wave", "weakref", "webbrowser", "zipapp", "zipfile/__init__", "zipimport", "collections/__init__"),
    *("json/decoder", "json/encoder", "logging/__init__", "logging/config", "logging/handlers", "html/parser"),
    *("http/client", "http/cookies", "http/server", "urllib/parse", "urllib/request", "email/utils", "email/message"),
    *("asyncio/locks", "asyncio/queues", "asyncio/tasks", "asyncio/streams", "unittest/case", "unittest/mock"),
)
"""Files of the standard library, without their suffix. Those that a version lacks are passed over."""

PASSAGE_WORDS: Final = (35, 150)
DOCSTRING_WORDS: Final = (20, 130)
CODE_LINES: Final = (5, 26)
CODE_CHARACTERS: Final = 1100

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Function:
    """A function of the standard library."""

    name: str
    source: str


@dataclass(frozen=True)
class Texts:
    """The given texts of one part, each list in a fixed order and without duplicates."""

    passages: tuple[str, ...]
    docstrings: tuple[str, ...]
    functions: tuple[Function, ...]


def read_texts(part: Part) -> Texts:
    """Collect the texts of a part from this interpreter's own files. Nothing is imported or run."""
    docstrings: dict[str, None] = {}
    functions: dict[str, Function] = {}
    for module in MODULES:
        for docstring, function in _definitions(module):
            # A function holds its docstring, so both go the same way.
            name = docstring or (function.source if function is not None else "")
            if part_of(name) is not part:
                continue
            if docstring is not None:
                docstrings.setdefault(docstring)
            if function is not None:
                functions.setdefault(function.source, function)
    return Texts(tuple(_passages(part)), tuple(docstrings), tuple(functions.values()))


def _passages(part: Part) -> Iterator[str]:
    """Paragraphs of Python's documentation, or a few that follow each other, as running text."""
    for name in sorted(topics):
        if name in SHOWN_ON_THE_PAGE or not is_training_topic(name):
            continue
        gathered: list[str] = []
        for paragraph in re.split(r"\n\s*\n", topics[name]):
            if _is_prose(paragraph):
                gathered.append(" ".join(paragraph.split()))
            count = len(" ".join(gathered).split())
            if count > PASSAGE_WORDS[1]:
                gathered = []
            elif count >= PASSAGE_WORDS[0]:
                passage = "\n\n".join(gathered)
                gathered = []
                if part_of(passage) is part:
                    yield passage


def _is_prose(paragraph: str) -> bool:
    """Neither a heading with its line below, nor a table, nor an example."""
    return not re.search(r"[*=~+^-]{3,}|>>>|::=|\|", paragraph) and paragraph.rstrip().endswith((".", ":", ")"))


def _definitions(module: str) -> Iterator[tuple[str | None, Function | None]]:
    """Yield docstring and function of each definition; None for what is too short, too long or not ASCII."""
    path = Path(sysconfig.get_path("stdlib")) / f"{module}.py"
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    for node in _outermost(ast.parse(text)):
        docstring = ast.get_docstring(node)
        is_usable = docstring is not None and docstring.isascii() and _is_between(docstring.split(), DOCSTRING_WORDS)
        source = None if isinstance(node, ast.ClassDef) else _source_of(node, text)
        yield docstring if is_usable else None, None if source is None else Function(node.name, source)


def _outermost(tree: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    """Functions and classes that stand in no function, whose source would hold them a second time."""
    for node in tree.body:
        if isinstance(node, Definition):
            yield node
        if isinstance(node, ast.ClassDef):
            yield from _outermost(node)


def _source_of(node: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> str | None:
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    source = textwrap.dedent("\n".join(lines))
    is_named_plainly = not node.name.startswith("__")
    is_usable = source.isascii() and len(source) <= CODE_CHARACTERS and _is_between(lines, CODE_LINES)
    return source if is_usable and is_named_plainly else None


def _is_between(items: list[str], bounds: tuple[int, int]) -> bool:
    return bounds[0] <= len(items) <= bounds[1]
