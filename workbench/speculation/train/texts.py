"""Given texts that every CPython carries: its documentation, docstrings and source code."""

from __future__ import annotations

import ast
import re
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator
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

RUN_WORDS: Final = 12
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


def read_texts() -> dict[Part, Texts]:
    """Collect the texts of both parts from this interpreter's own files. Nothing is imported or run.

    The documentation and the docstrings repeat themselves in places: a held-out text that has twelve
    words in a row in common with a training text is left out.
    """
    passages = dict.fromkeys(_passages())
    docstrings: dict[str, None] = {}
    functions: dict[str, Function] = {}
    for module in MODULES:
        for docstring, function in _definitions(module):
            if docstring is not None:
                docstrings.setdefault(docstring)
            if function is not None:
                functions.setdefault(function.source, function)
    trained = runs_of_words(text for text in (*passages, *docstrings, *functions) if part_of(text) is Part.TRAIN)

    def texts_of(part: Part) -> Texts:
        def is_mine(text: str) -> bool:
            return part_of(text) is part and (part is Part.TRAIN or not runs_of_words([text]) & trained)

        return Texts(
            tuple(filter(is_mine, passages)),
            tuple(filter(is_mine, docstrings)),
            tuple(functions[source] for source in filter(is_mine, functions)),
        )

    return {part: texts_of(part) for part in Part}


def runs_of_words(texts: Iterable[str]) -> set[tuple[str, ...]]:
    """Return every twelve words that follow each other: two texts that share some have a passage in common."""
    found: set[tuple[str, ...]] = set()
    for text in texts:
        words = re.findall(r"[a-z0-9_]+", text.lower())
        found.update(zip(*(words[start:] for start in range(RUN_WORDS)), strict=False))
    return found


def _passages() -> Iterator[str]:
    """Passages that stand in the training half of the documentation alone."""
    used_elsewhere = runs_of_words(
        text for name, text in topics.items() if name in SHOWN_ON_THE_PAGE or not is_training_topic(name)
    )
    for name in sorted(topics):
        if name not in SHOWN_ON_THE_PAGE and is_training_topic(name):
            yield from (text for text in _passages_of(topics[name]) if not runs_of_words([text]) & used_elsewhere)


def _passages_of(topic: str) -> Iterator[str]:
    """Paragraphs, or a few that follow each other, as running text."""
    gathered: list[str] = []
    for paragraph in re.split(r"\n\s*\n", topic):
        if _is_prose(paragraph):
            gathered.append(" ".join(paragraph.split()))
        count = len(" ".join(gathered).split())
        if count > PASSAGE_WORDS[1]:
            gathered = []
        elif count >= PASSAGE_WORDS[0]:
            yield "\n\n".join(gathered)
            gathered = []


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
