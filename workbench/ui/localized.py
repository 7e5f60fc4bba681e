"""Texts for Gradio's components, which the browser translates, and the language of whoever an event comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gradio as gr

from workbench.ui.texts import CHINESE, CHINESE_TABLE, ENGLISH, Texts, language_of

_GRADIO_TEXTS: Final = gr.I18n(**{"en": {english: english for english in CHINESE_TABLE}, "zh-CN": dict(CHINESE_TABLE)})


def localized(english: str) -> Any:
    """Return a text for a Gradio component, which the browser shows in its visitor's language."""
    return _GRADIO_TEXTS(english)


def gradio_texts() -> gr.I18n:
    """Return the tables for Gradio, which calls the languages by the browser's names for them."""
    return _GRADIO_TEXTS


def texts_for(request: gr.Request | None) -> Texts:
    """Return the texts in the language of whoever an event comes from."""
    headers: Mapping[str, str] = getattr(request, "headers", {})
    return CHINESE if language_of(headers.get("cookie", ""), headers.get("accept-language", "")) == "zh" else ENGLISH
