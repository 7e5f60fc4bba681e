"""What happens when someone sends, stops, regenerates or clears: handlers of the Chat tab.

Each is an async generator of changes to widgets. Gradio closes it when the tab goes away (measured:
within half a second, with nothing but the connection that carries the answer), and closing it ends
the engine's request, whatever it was waiting for.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import gradio as gr

from workbench.engine.service import EngineService
from workbench.errors import WorkbenchError
from workbench.telemetry.records import FinishReason
from workbench.ui import markup
from workbench.ui.active_turns import ActiveTurns
from workbench.ui.chat_session import NOTHING_YET, stream_answer
from workbench.ui.chat_widgets import ChatWidgets
from workbench.ui.conversations import Conversations
from workbench.ui.listeners import Listeners
from workbench.ui.localized import texts_for
from workbench.ui.phases import Phase
from workbench.ui.sampling_form import as_mapping, priority_of, sampling_params, speculation_params
from workbench.ui.texts import ENGLISH, Texts
from workbench.ui.transcript import take_away
from workbench.ui.turns import (
    AnswerSettings,
    AnswerStats,
    ChatError,
    Conversation,
    Turn,
    context_full_note,
    drop_oldest_turns,
    num_questions,
    with_chosen_answer,
    with_edited_message,
    with_toggled_tokens,
    without_last_answer,
)

Changes = AsyncGenerator[dict[Any, Any], None]
"""Widget → its new value or properties."""


@dataclass
class ChatHandlers:
    """The handlers of one page, over one engine; conversations are told apart by browser tab.

    Positional arguments after the request are the sidebar's: system prompt, then the fields of the
    sampling form.
    """

    service: EngineService
    widgets: ChatWidgets
    listeners: Listeners | None = None
    turns: ActiveTurns = field(init=False)
    conversations: Conversations = field(default_factory=Conversations)

    def __post_init__(self) -> None:
        self.turns = ActiveTurns(self.service, self.listeners)

    async def send(
        self, request: gr.Request, message: str, edited: float | None, system_prompt: str, *sampling: Any
    ) -> Changes:
        """Append a message, or put it in the place of the one that is edited, and stream the answer."""
        session = session_of(request)
        if not message.strip() or self.turns.is_busy(session):
            yield {self.widgets.message: gr.skip()}
            return
        index = None if edited is None else int(edited)
        asked = with_edited_message(self.conversations.of(session), index, message.strip())
        yield {self.widgets.message: ""}
        async with aclosing(self._answer(request, asked, system_prompt, sampling)) as changes:
            async for change in changes:
                yield change

    async def begin_edit(self, request: gr.Request, event: gr.SelectData) -> dict[Any, Any]:
        """Put an earlier message into the message box; sending it cuts the conversation there."""
        session, index = session_of(request), int(event.index)
        conversation = self.conversations.of(session)
        is_known = 0 <= index < len(conversation) and conversation[index].role == "user"
        if not is_known or self.turns.is_busy(session):
            return {self.widgets.message: gr.skip()}
        return {
            self.widgets.message: conversation[index].text,
            **self.widgets.editing(index, conversation, texts_for(request)),
        }

    async def choose(self, request: gr.Request, event: gr.EventData) -> dict[Any, Any]:
        """Go on with another one of the last turn's answers."""
        session, say = session_of(request), texts_for(request)
        conversation = self.conversations.of(session)
        chosen = with_chosen_answer(conversation, int(event.index), int(event.answer))
        if chosen == conversation or self.turns.is_busy(session):
            return {self.widgets.tools: gr.skip()}
        self.conversations.keep(session, chosen)
        full = context_full_note(self.service, chosen, say)
        return {
            self.widgets.chatbot: self._messages(chosen, say),
            self.widgets.tools: take_away(self.service, chosen, session),
            **self.widgets.full_context(num_questions(chosen), full),
        }

    async def toggle_tokens(self, request: gr.Request, event: gr.EventData) -> dict[Any, Any]:
        """Show an answer as its tokens, or as text again."""
        session = session_of(request)
        if self.turns.is_busy(session):
            return {self.widgets.tools: gr.skip()}
        toggled = with_toggled_tokens(self.conversations.of(session), int(event.index), int(event.answer or 0))
        self.conversations.keep(session, toggled)
        return {
            self.widgets.chatbot: self._messages(toggled, texts_for(request)),
            self.widgets.tools: take_away(self.service, toggled, session),
        }

    async def cancel_edit(self) -> dict[Any, Any]:
        """Leave the conversation as it is."""
        return {self.widgets.message: "", **self.widgets.not_editing()}

    def sender_of(self, text: str) -> Callable[..., Changes]:
        """Return a handler that sends `text` in place of what stands in the message box."""

        async def send_text(request: gr.Request, system_prompt: str, *sampling: Any) -> Changes:
            async with aclosing(self.send(request, text, None, system_prompt, *sampling)) as changes:
                async for change in changes:
                    yield change

        return send_text

    async def regenerate(self, request: gr.Request, system_prompt: str, *sampling: Any) -> Changes:
        """Ask for the last answer again."""
        session = session_of(request)
        asked = without_last_answer(self.conversations.of(session))
        async with aclosing(self._answer(request, asked, system_prompt, sampling)) as changes:
            async for change in changes:
                yield change

    async def drop_oldest(self, request: gr.Request, system_prompt: str, *sampling: Any) -> Changes:
        """Forget the oldest turns until the context has room again, then ask for the last answer again."""
        session, max_tokens = session_of(request), as_mapping(sampling)["max_tokens"]
        asked = without_last_answer(self.conversations.of(session))
        kept = drop_oldest_turns(self.service, asked, system_prompt, int(max_tokens) if max_tokens else None)
        async with aclosing(self._answer(request, kept, system_prompt, sampling)) as changes:
            async for change in changes:
                yield change

    async def stop(self, request: gr.Request) -> None:
        """End the answer under way; its own handler then shows what there is of it."""
        self.turns.stop(session_of(request))

    async def come_back(self, request: gr.Request, earlier: str | None) -> dict[Any, Any]:
        """Show the conversation of the page that this one was before it was reloaded: `earlier` is its session."""
        session, conversation = session_of(request), self.conversations.of(earlier or "")
        if not conversation or self.conversations.of(session):
            return {self.widgets.tools: gr.skip()}
        self.conversations.keep(session, conversation)
        say = texts_for(request)
        return {**self._idle(session, conversation, say), self.widgets.chatbot: self._messages(conversation, say)}

    async def clear(self, request: gr.Request) -> dict[Any, Any]:
        """Forget the conversation."""
        session = session_of(request)
        self.conversations.keep(session, ())
        return {**self._idle(session, (), ENGLISH), self.widgets.chatbot: [], self.widgets.request_map: None}

    async def _answer(
        self, request: gr.Request, asked: Conversation, system_prompt: str, sampling: tuple[Any, ...]
    ) -> Changes:
        """Stream the answer to a conversation that ends with a user message, and keep it."""
        session, say = session_of(request), texts_for(request)
        if not asked or self.turns.is_busy(session):
            yield {self.widgets.message: gr.skip()}
            return
        self.conversations.keep(session, asked)
        taken = take_away(self.service, asked, session)
        yield {**self.widgets.busy(), self.widgets.tools: taken, self.widgets.chatbot: self._messages(asked, say)}
        try:
            params, priority = sampling_params(sampling, lambda: self.service.tokenizer), priority_of(sampling)
            drafting = speculation_params(sampling)
        except WorkbenchError as error:
            stats = AnswerStats(finish_reason=FinishReason.ERROR)
            yield self._end(session, asked, Turn("assistant", "", stats, ChatError(str(error))), say)
            return
        wanted = AnswerSettings(self.service.status.model_name, system_prompt.strip(), params, priority, drafting)
        async with aclosing(self._stream(session, asked, wanted, say)) as changes:
            async for change in changes:
                yield change

    async def _stream(self, session: str, asked: Conversation, wanted: AnswerSettings, say: Texts) -> Changes:
        turn = self.turns.start(session)
        earlier = self._messages(asked, say)
        last = NOTHING_YET
        try:
            async with aclosing(stream_answer(self.service, asked, wanted, say=say)) as updates:
                async for update in updates:
                    turn.request_id, last = update.request_id, update
                    if update.is_final or (turn.is_stopped and update.request_id is None):
                        break
                    yield {
                        self.widgets.chatbot: [*earlier, self._message(update.turn, say, update.phases)],
                        self.widgets.request_map: update.request_id,
                    }
        finally:
            self.turns.end(session, turn)
        stopped = Turn("assistant", "", AnswerStats(finish_reason=FinishReason.ABORT))
        end = self._end(session, asked, replace(last.turn if last.is_final else stopped, settings=wanted), say)
        # A short answer may be whole in its first update; the page is to know it as this visitor's all the same.
        yield end if turn.request_id is None else {**end, self.widgets.request_map: turn.request_id}

    def _end(self, session: str, asked: Conversation, answer: Turn, say: Texts) -> dict[Any, Any]:
        conversation = (*asked, answer)
        self.conversations.keep(session, conversation)
        return {**self._idle(session, conversation, say), self.widgets.chatbot: self._messages(conversation, say)}

    def _idle(self, session: str, conversation: Conversation, say: Texts) -> dict[Any, Any]:
        """What surrounds the conversation between two answers."""
        full = context_full_note(self.service, conversation, say)
        return {
            **self.widgets.idle(num_questions(conversation), full),
            self.widgets.tools: take_away(self.service, conversation, session),
        }

    def _messages(self, conversation: Conversation, say: Texts) -> list[dict[str, str]]:
        """The messages between two answers: of the last turn, another answer can be chosen."""
        last = len(conversation) - 1
        return [self._message(turn, say, can_choose=index == last) for index, turn in enumerate(conversation)]

    def _message(
        self, turn: Turn, say: Texts, phases: Sequence[Phase] = (), *, can_choose: bool = False
    ) -> dict[str, str]:
        if turn.role == "user":
            return {"role": "user", "content": markup.user_message(turn, say)}
        name = self.service.status.model_name
        content = markup.assistant_message(turn, name, phases, can_choose=can_choose, say=say)
        return {"role": "assistant", "content": content}


def session_of(request: gr.Request) -> str:
    """The browser tab that an event comes from."""
    return request.session_hash or ""
