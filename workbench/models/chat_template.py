"""Chat templates: the Jinja text in a model file that turns messages into one prompt.

Rendered as `transformers` does it (same environment, same helpers; a test compares the two), but
without importing transformers, which takes many seconds. Templates come from model files, which
may be anybody's, so they run in Jinja's immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from workbench.errors import InvalidPromptError, ModelLoadError


class _GenerationTag(jinja2.ext.Extension):
    """Accept `{% generation %} … {% endgeneration %}`, which marks answers for training, as plain text."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it per instance)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template.

    Raises:
        ModelLoadError: the text is not a valid template.
    """

    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        """text: Jinja source. special_tokens: variables such as `bos_token` that templates may use."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(
                f"the model file's chat template is not valid (line {error.lineno}): {error}"
            ) from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        """Return the prompt for messages ({"role", "content"}).

        Raises:
            InvalidPromptError: the template refuses them, for example two user messages in a row.
        """
        try:
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except jinja2.TemplateError as error:
            raise InvalidPromptError(f"the model's chat template refuses these messages: {error}") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replace Jinja's own filter, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
