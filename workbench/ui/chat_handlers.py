"""What happens when someone sends, stops, regenerates or clears: handlers of the Chat tab.

Each is an async generator of changes to widgets. Gradio closes it when the tab goes away (measured:
within half a second, with nothing but the connection that carries the answer), and closing it ends
the engine's request, whatever it was waiting for.
"""

from __future__ import annotations

import html
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from workbench.engine.service import EngineService
from workbench.errors import InvalidSamplingParamsError, WorkbenchError
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import FinishReason
from workbench.ui import markup, settings
from workbench.ui.active_turns import ActiveTurns
from workbench.ui.background import BackgroundLoad
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
from workbench.ui.conversations import Conversations

Changes = AsyncGenerator[dict[Any, Any], None]
"""Widget → its new value or properties."""


@dataclass(frozen=True)
class ChatWidgets:
    """The widgets of the tab that its handlers change."""

    chatbot: gr.Chatbot
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

    @property
    def outputs(self) -> list[Any]:
        """The widgets that a handler may change."""
        return [
            self.chatbot,
            self.message,
            self.send,
            self.stop,
            self.clear,
            self.regenerate,
            self.drop_oldest,
            self.request_map,
            *self.suggestions,
        ]

    def busy(self) -> dict[Any, Any]:
        """The buttons while an answer is under way."""
        return {
            self.send: gr.Button(interactive=False),
            self.stop: gr.Button(interactive=True),
            self.clear: gr.Button(interactive=False),
            self.regenerate: gr.Button(interactive=False),
            self.drop_oldest: gr.Button(visible=False),
            **{button: gr.Button(interactive=False) for button in self.suggestions},
        }

    def idle(self, conversation: Conversation) -> dict[Any, Any]:
        """The buttons between two answers."""
        error = conversation[-1].error if conversation else None
        num_questions = sum(turn.role == "user" for turn in conversation)
        return {
            self.send: gr.Button(interactive=True),
            self.stop: gr.Button(interactive=False),
            self.clear: gr.Button(interactive=True),
            self.regenerate: gr.Button(interactive=num_questions > 0),
            self.drop_oldest: gr.Button(visible=error is not None and error.is_context_full and num_questions > 1),
            **{button: gr.Button(interactive=True) for button in self.suggestions},
        }


@dataclass
class ChatHandlers:
    """The handlers of one page, over one engine; conversations are told apart by browser tab.

    Positional arguments after the request are the sidebar's: system prompt, then the arguments of
    `settings.sampling_params`.
    """

    service: EngineService
    widgets: ChatWidgets
    turns: ActiveTurns = field(init=False)
    conversations: Conversations = field(default_factory=Conversations)

    def __post_init__(self) -> None:
        self.turns = ActiveTurns(self.service)

    async def send(self, request: gr.Request, message: str, system_prompt: str, *sampling: Any) -> Changes:
        """Append a message to the conversation and stream the answer."""
        session = _session(request)
        if not message.strip() or self.turns.is_busy(session):
            yield {self.widgets.message: gr.skip()}
            return
        asked = (*self.conversations.of(session), Turn("user", message.strip()))
        yield {self.widgets.message: ""}
        async with aclosing(self._answer(session, asked, system_prompt, sampling)) as changes:
            async for change in changes:
                yield change

    def sender_of(self, text: str) -> Callable[..., Changes]:
        """Return a handler that sends `text` in place of what stands in the message box."""

        async def send_text(request: gr.Request, system_prompt: str, *sampling: Any) -> Changes:
            async with aclosing(self.send(request, text, system_prompt, *sampling)) as changes:
                async for change in changes:
                    yield change

        return send_text

    async def regenerate(self, request: gr.Request, system_prompt: str, *sampling: Any) -> Changes:
        """Ask for the last answer again."""
        session = _session(request)
        asked = without_last_answer(self.conversations.of(session))
        async with aclosing(self._answer(session, asked, system_prompt, sampling)) as changes:
            async for change in changes:
                yield change

    async def drop_oldest(self, request: gr.Request, system_prompt: str, *sampling: Any) -> Changes:
        """Forget the oldest turns until the context has room again, then ask for the last answer again."""
        session, max_tokens = _session(request), sampling[4]
        asked = without_last_answer(self.conversations.of(session))
        kept = drop_oldest_turns(self.service, asked, system_prompt, int(max_tokens) if max_tokens else None)
        async with aclosing(self._answer(session, kept, system_prompt, sampling)) as changes:
            async for change in changes:
                yield change

    async def stop(self, request: gr.Request) -> None:
        """End the answer under way; its own handler then shows what there is of it."""
        self.turns.stop(_session(request))

    async def clear(self, request: gr.Request) -> dict[Any, Any]:
        """Forget the conversation."""
        self.conversations.keep(_session(request), ())
        return {**self.widgets.idle(()), self.widgets.chatbot: [], self.widgets.request_map: None}

    async def _answer(
        self, session: str, asked: Conversation, system_prompt: str, sampling: tuple[Any, ...]
    ) -> Changes:
        """Stream the answer to a conversation that ends with a user message, and keep it."""
        if not asked or self.turns.is_busy(session):
            yield {self.widgets.message: gr.skip()}
            return
        self.conversations.keep(session, asked)
        yield {**self.widgets.busy(), self.widgets.chatbot: self._messages(asked)}
        try:
            params = settings.sampling_params(*sampling)
        except InvalidSamplingParamsError as error:
            stats = AnswerStats(finish_reason=FinishReason.ERROR)
            yield self._end(session, asked, Turn("assistant", "", stats, ChatError(str(error))))
            return
        async with aclosing(self._stream(session, asked, system_prompt, params)) as changes:
            async for change in changes:
                yield change

    async def _stream(self, session: str, asked: Conversation, system_prompt: str, params: SamplingParams) -> Changes:
        turn = self.turns.start(session)
        earlier = self._messages(asked)
        last = AnswerUpdate(None, "", Phase.queued(), AnswerStats())
        try:
            async with aclosing(stream_answer(self.service, asked, system_prompt, params)) as updates:
                async for update in updates:
                    turn.request_id, last = update.request_id, update
                    if update.is_final or (turn.is_stopped and update.request_id is None):
                        break
                    yield {
                        self.widgets.chatbot: [*earlier, self._message(update.turn, update.phase)],
                        self.widgets.request_map: update.request_id,
                    }
        finally:
            self.turns.end(session, turn)
        stopped = Turn("assistant", "", AnswerStats(finish_reason=FinishReason.ABORT))
        yield self._end(session, asked, last.turn if last.is_final else stopped)

    def _end(self, session: str, asked: Conversation, answer: Turn) -> dict[Any, Any]:
        conversation = (*asked, answer)
        self.conversations.keep(session, conversation)
        return {**self.widgets.idle(conversation), self.widgets.chatbot: self._messages(conversation)}

    def _messages(self, conversation: Conversation) -> list[dict[str, str]]:
        return [self._message(turn) for turn in conversation]

    def _message(self, turn: Turn, phase: Phase | None = None) -> dict[str, str]:
        if turn.role == "user":
            return {"role": "user", "content": markup.user_message(turn)}
        content = markup.assistant_message(turn, self.service.status.model_name, phase)
        return {"role": "assistant", "content": content}


def _session(request: gr.Request) -> str:
    """The browser tab that an event comes from."""
    return request.session_hash or ""


def background_handler(load: BackgroundLoad) -> Callable[[], Awaitable[str]]:
    """Return the handler of the background button: it adds requests and says so, or says why not."""

    async def add() -> str:
        try:
            ids = load.add()
        except WorkbenchError as error:
            return f'<p class="wb-note-error" role="alert">{html.escape(str(error))}</p>'
        return f'<p class="wb-note" role="status">Added {ids[0]} to {ids[-1]}; {load.num_unfinished} under way.</p>'

    return add
