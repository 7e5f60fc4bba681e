"""The Chat tab's handlers: which widgets they change while an answer comes and at its end."""

from __future__ import annotations

import asyncio
from typing import Any

import gradio as gr

from tests.ui.scripted_service import ScriptedService
from workbench.sampling_params import SamplingParams
from workbench.ui.chat_handlers import ChatHandlers
from workbench.ui.pages.chat import _lay_out
from workbench.ui.texts import ENGLISH
from workbench.ui.turns import AnswerSettings, Turn


class InstantService(ScriptedService):
    """An engine that has answered before anyone looks."""

    def submit(self, *args: Any, **options: Any) -> str:
        name = super().submit(*args, **options)
        self.token(name, "hello", 1)
        self.finish(name)
        return name


def test_request_that_ends_before_the_first_update_is_shown_as_this_visitors():
    service: Any = InstantService()
    with gr.Blocks():
        handlers = ChatHandlers(service, _lay_out())
    wanted = AnswerSettings("scripted", "", SamplingParams(max_tokens=8))

    async def changes() -> list[dict[Any, Any]]:
        return [change async for change in handlers._stream("tab", (Turn("user", "hello"),), wanted, ENGLISH)]

    (end,) = asyncio.run(changes())
    assert end[handlers.widgets.request_map] == "r1"
