"""The Chat tab: the conversation, the visitor's request, and a button that loads the engine."""

from __future__ import annotations

import html
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import gradio as gr

from workbench.engine.service import EngineService
from workbench.errors import InvalidSamplingParamsError, WorkbenchError
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import FinishReason
from workbench.ui import markup, settings
from workbench.ui.active_turns import ActiveTurns
from workbench.ui.background import REQUESTS_PER_CLICK, BackgroundLoad
from workbench.ui.chat_session import (
    AnswerStats,
    AnswerUpdate,
    ChatError,
    Conversation,
    Phase,
    Turn,
    drop_oldest_turns,
    stream_answer,
    without_last_answer,
)
from workbench.ui.components.block_map import compact_map
from workbench.ui.sidebar import Sidebar
from workbench.ui.suggestions import SUGGESTIONS

EMPTY_CHAT: Final = (
    "<div class='wb-empty'><b>Ask the model something.</b><br>"
    "The engine computes every answer here; its blocks, steps and figures are shown beside it.</div>"
)


@dataclass(frozen=True)
class _Widgets:
    chatbot: gr.Chatbot
    conversation: gr.State
    message: gr.Textbox
    send: gr.Button
    stop: gr.Button
    clear: gr.Button
    regenerate: gr.Button
    drop_oldest: gr.Button
    request_map: gr.HTML
    """Shows the request whose id is its value."""
    suggestions: list[gr.Button]
    add_background: gr.Button
    background_note: gr.HTML


def build_chat_page(service: EngineService, sidebar: Sidebar, turns: ActiveTurns) -> None:
    """Lay out the Chat tab and wire its events. Call inside its `gr.Tab`."""
    widgets = _lay_out()
    _wire_answers(service, sidebar, turns, widgets)
    _wire_background(BackgroundLoad(service), widgets)


def _lay_out() -> _Widgets:
    conversation = gr.State(())
    with gr.Row(elem_classes="wb-two", equal_height=False):
        with gr.Column(elem_classes="wb-chat", min_width=0):
            chatbot = gr.Chatbot(
                [],
                show_label=False,
                label="Conversation",
                layout="panel",
                height=None,
                placeholder=EMPTY_CHAT,
                buttons=[],
                feedback_options=None,
                latex_delimiters=[],
                allow_tags=False,
                allow_file_downloads=False,
                group_consecutive_messages=False,
                elem_id="wb-chatbot",
                elem_classes="wb-chatbot",
            )
            with gr.Column(elem_classes="wb-composer", min_width=0):
                with gr.Row(elem_classes="wb-try"):
                    gr.HTML('<span class="wb-sub">Try</span>', elem_classes="wb-try-label")
                    suggestions = [
                        gr.Button(item.label, size="sm", elem_classes="wb-suggestion", min_width=0)
                        for item in SUGGESTIONS
                    ]
                    drop_oldest = gr.Button(
                        "Drop the oldest turns",
                        size="sm",
                        visible=False,
                        min_width=0,
                        elem_id="wb-drop-oldest",
                        elem_classes="wb-small",
                    )
                    clear = gr.Button("New chat", size="sm", min_width=0, elem_id="wb-clear", elem_classes="wb-small")
                    regenerate = gr.Button(
                        "Regenerate",
                        size="sm",
                        interactive=False,
                        min_width=0,
                        elem_id="wb-regenerate",
                        elem_classes="wb-small",
                    )
                with gr.Row(elem_classes="wb-send-row"):
                    message = gr.Textbox(
                        show_label=False,
                        label="Message",
                        placeholder="Message…  Enter sends, Shift+Enter breaks the line",
                        lines=1,
                        max_lines=8,
                        container=False,
                        elem_id="wb-message",
                        autofocus=True,
                        min_width=0,
                    )
                    stop = gr.Button("Stop", interactive=False, elem_id="wb-stop", elem_classes="wb-tall", min_width=0)
                    send = gr.Button("Send", variant="primary", elem_id="wb-send", elem_classes="wb-tall", min_width=0)
        with gr.Column(elem_classes="wb-side", min_width=0):
            request_map = compact_map()
            with gr.Column(elem_classes="wb-card", min_width=0):
                gr.HTML(
                    '<h3>Load the engine</h3><p class="wb-note">Sends real requests that share the pool with yours.</p>'
                )
                add_background = gr.Button(
                    f"Add {REQUESTS_PER_CLICK} background requests", size="sm", elem_id="wb-background"
                )
                background_note = gr.HTML("", elem_id="wb-background-note")
    return _Widgets(
        chatbot,
        conversation,
        message,
        send,
        stop,
        clear,
        regenerate,
        drop_oldest,
        request_map,
        suggestions,
        add_background,
        background_note,
    )


# ------------------------------------------------------------------------------- answers


def _wire_answers(service: EngineService, sidebar: Sidebar, turns: ActiveTurns, widgets: _Widgets) -> None:
    async def answer(
        request: gr.Request, conversation: Conversation, system_prompt: str, sampling: tuple[Any, ...]
    ) -> AsyncGenerator[dict[Any, Any], None]:
        """Stream the answer to a conversation that ends with a user message."""
        yield {**_busy(widgets), widgets.conversation: conversation}
        try:
            params = settings.sampling_params(*sampling)
        except InvalidSamplingParamsError as error:
            yield _refusal(service, widgets, conversation, str(error))
            return
        async with aclosing(_stream(service, turns, widgets, conversation, system_prompt, params, request)) as changes:
            async for change in changes:
                yield change

    async def send(
        request: gr.Request, message: str, conversation: Conversation, system_prompt: str, *sampling: Any
    ) -> AsyncGenerator[dict[Any, Any], None]:
        if not message.strip():
            yield {widgets.message: gr.skip()}
            return
        asked = (*conversation, Turn("user", message.strip()))
        yield {widgets.message: "", widgets.chatbot: _messages(service, asked)}
        async with aclosing(answer(request, asked, system_prompt, sampling)) as changes:
            async for change in changes:
                yield change

    async def regenerate(
        request: gr.Request, conversation: Conversation, system_prompt: str, *sampling: Any
    ) -> AsyncGenerator[dict[Any, Any], None]:
        async with aclosing(answer(request, without_last_answer(conversation), system_prompt, sampling)) as changes:
            async for change in changes:
                yield change

    async def drop_oldest(
        request: gr.Request, conversation: Conversation, system_prompt: str, *sampling: Any
    ) -> AsyncGenerator[dict[Any, Any], None]:
        asked = without_last_answer(conversation)
        limit = sampling[4]
        kept = drop_oldest_turns(service, asked, system_prompt, int(limit) if limit else None)
        async with aclosing(answer(request, kept, system_prompt, sampling)) as changes:
            async for change in changes:
                yield change

    async def stop(request: gr.Request) -> None:
        turns.stop(request.session_hash or "")

    async def clear() -> dict[Any, Any]:
        return {
            widgets.chatbot: [],
            widgets.conversation: (),
            widgets.regenerate: gr.Button(interactive=False),
            widgets.drop_oldest: gr.Button(visible=False),
            widgets.request_map: None,
        }

    outputs = [
        widgets.chatbot,
        widgets.conversation,
        widgets.message,
        widgets.send,
        widgets.stop,
        widgets.clear,
        widgets.regenerate,
        widgets.drop_oldest,
        widgets.request_map,
    ]
    own = [sidebar.system_prompt, *sidebar.sampling]
    streaming: dict[str, Any] = {"outputs": outputs, "concurrency_limit": None, **_PRIVATE}
    gr.on(
        [widgets.message.submit, widgets.send.click],
        send,
        [widgets.message, widgets.conversation, *own],
        **streaming,
    )
    for button, suggestion in zip(widgets.suggestions, SUGGESTIONS, strict=True):
        button.click(
            _bind_message(send, suggestion.text),
            [widgets.conversation, *own],
            **streaming,
        )
    widgets.regenerate.click(regenerate, [widgets.conversation, *own], **streaming)
    widgets.drop_oldest.click(drop_oldest, [widgets.conversation, *own], **streaming)
    widgets.stop.click(stop, queue=False, **_PRIVATE)
    widgets.clear.click(clear, None, outputs, queue=False, **_PRIVATE)


_PRIVATE: Final[dict[str, Any]] = {"show_progress": "hidden", "api_visibility": "private"}


def _bind_message(send: Any, text: str) -> Any:
    """Return a handler that sends `text` in place of what stands in the message box."""

    async def send_suggestion(
        request: gr.Request, conversation: Conversation, system_prompt: str, *sampling: Any
    ) -> AsyncGenerator[dict[Any, Any], None]:
        async with aclosing(send(request, text, conversation, system_prompt, *sampling)) as changes:
            async for change in changes:
                yield change

    return send_suggestion


async def _stream(
    service: EngineService,
    turns: ActiveTurns,
    widgets: _Widgets,
    conversation: Conversation,
    system_prompt: str,
    params: SamplingParams,
    request: gr.Request,
) -> AsyncGenerator[dict[Any, Any], None]:
    """Yield what each update of the answer changes on the page; closing this ends the request."""
    session = request.session_hash or ""
    turn = turns.start(session)
    earlier = _messages(service, conversation)
    last = AnswerUpdate(None, "", Phase.queued(), AnswerStats())
    try:
        async with aclosing(stream_answer(service, conversation, system_prompt, params)) as updates:
            async for update in updates:
                turn.request_id, last = update.request_id, update
                if update.is_final or (turn.is_stopped and update.request_id is None):
                    break
                yield {
                    widgets.chatbot: [*earlier, _assistant(service, update.turn, update.phase)],
                    widgets.request_map: update.request_id,
                }
    finally:
        turns.end(session, turn)
    ended = last.turn if last.is_final else Turn("assistant", "", AnswerStats(finish_reason=FinishReason.ABORT))
    yield {
        **_idle(widgets, (*conversation, ended)),
        widgets.chatbot: [*earlier, _assistant(service, ended)],
        widgets.conversation: (*conversation, ended),
    }


def _refusal(service: EngineService, widgets: _Widgets, conversation: Conversation, message: str) -> dict[Any, Any]:
    refused = Turn("assistant", "", AnswerStats(finish_reason=FinishReason.ERROR), ChatError(message))
    return {
        **_idle(widgets, (*conversation, refused)),
        widgets.chatbot: _messages(service, (*conversation, refused)),
        widgets.conversation: (*conversation, refused),
    }


def _messages(service: EngineService, conversation: Conversation) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": markup.user_message(turn)} if turn.role == "user" else _assistant(service, turn)
        for turn in conversation
    ]


def _assistant(service: EngineService, turn: Turn, phase: Phase | None = None) -> dict[str, str]:
    content = markup.assistant_message(turn, service.status.model_name, phase)
    return {"role": "assistant", "content": content}


def _busy(widgets: _Widgets) -> dict[Any, Any]:
    return {
        widgets.send: gr.Button(interactive=False),
        widgets.stop: gr.Button(interactive=True),
        widgets.clear: gr.Button(interactive=False),
        widgets.regenerate: gr.Button(interactive=False),
        widgets.drop_oldest: gr.Button(visible=False),
    }


def _idle(widgets: _Widgets, conversation: Conversation) -> dict[Any, Any]:
    error = conversation[-1].error
    can_drop = error is not None and error.is_context_full and sum(t.role == "user" for t in conversation) > 1
    return {
        widgets.send: gr.Button(interactive=True),
        widgets.stop: gr.Button(interactive=False),
        widgets.clear: gr.Button(interactive=True),
        widgets.regenerate: gr.Button(interactive=True),
        widgets.drop_oldest: gr.Button(visible=can_drop),
    }


# ------------------------------------------------------------------------------- background load


def _wire_background(load: BackgroundLoad, widgets: _Widgets) -> None:
    async def add() -> str:
        try:
            ids = load.add()
        except WorkbenchError as error:
            return f'<p class="wb-note-error" role="alert">{html.escape(str(error))}</p>'
        return f'<p class="wb-note" role="status">Added {ids[0]} to {ids[-1]}; {load.num_unfinished} under way.</p>'

    widgets.add_background.click(add, None, widgets.background_note, queue=False, trigger_mode="multiple", **_PRIVATE)
