"""The widgets of the Chat tab that its handlers change, and how they look in each situation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from workbench.ui.notes import note
from workbench.ui.texts import Texts
from workbench.ui.turns import Conversation


@dataclass(frozen=True)
class ChatWidgets:
    """The widgets of the tab that its handlers change."""

    chatbot: gr.Chatbot
    message: gr.Textbox
    send: gr.Button
    stop: gr.Button
    clear: gr.Button
    regenerate: gr.Button
    context_bar: gr.Row
    context_note: gr.HTML
    drop_oldest: gr.Button
    edit_bar: gr.Row
    edit_note: gr.HTML
    cancel_edit: gr.Button
    edited: gr.Number
    """Place in the conversation of the message that is edited. Never shown."""
    earlier_session: gr.Textbox
    """Session of this page before it was reloaded. Never shown."""
    request_map: gr.HTML
    """Shows the request whose id is its value."""
    tools: gr.HTML
    """Copies and saves what is its value: see `transcript.take_away`. Selects messages to edit and answers to keep."""
    suggestions: list[gr.Button]
    add_background: gr.Button
    add_burst: gr.Button
    preempt: gr.Button
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
            self.context_bar,
            self.context_note,
            self.drop_oldest,
            *self.edit_outputs,
            self.request_map,
            self.tools,
            *self.suggestions,
        ]

    @property
    def choice_outputs(self) -> list[Any]:
        """The widgets that depend on which answer the conversation goes on with."""
        return [self.chatbot, self.tools, self.context_bar, self.context_note, self.drop_oldest]

    @property
    def edit_outputs(self) -> list[Any]:
        """The widgets that say what is edited."""
        return [self.edit_bar, self.edit_note, self.edited]

    def busy(self) -> dict[Any, Any]:
        """The buttons while an answer is under way."""
        return {
            self.send: gr.Button(interactive=False),
            self.stop: gr.Button(interactive=True),
            self.clear: gr.Button(interactive=False),
            self.regenerate: gr.Button(interactive=False),
            self.context_bar: gr.Row(visible=False),
            **self.not_editing(),
            **{button: gr.Button(interactive=False) for button in self.suggestions},
        }

    def idle(self, num_questions: int, context_full: str) -> dict[Any, Any]:
        """The buttons between two answers; `context_full` says that the context is full, or nothing."""
        return {
            self.send: gr.Button(interactive=True),
            self.stop: gr.Button(interactive=False),
            self.clear: gr.Button(interactive=True),
            self.regenerate: gr.Button(interactive=num_questions > 0),
            **self.full_context(num_questions, context_full),
            **self.not_editing(),
            **{button: gr.Button(interactive=True) for button in self.suggestions},
        }

    def full_context(self, num_questions: int, words: str) -> dict[Any, Any]:
        """Say that the context is full, or nothing, and offer to drop turns where there are older ones."""
        return {
            self.context_bar: gr.Row(visible=bool(words)),
            self.context_note: note(words),
            self.drop_oldest: gr.Button(visible=num_questions > 1),
        }

    def editing(self, index: int, conversation: Conversation, say: Texts) -> dict[Any, Any]:
        """Say what sending will replace."""
        after = len(conversation) - index - 1
        if not after:
            words = say("Editing: Send replaces this message.")
        elif after == 1:
            words = say("Editing: Send replaces this message and the 1 message after it.")
        else:
            words = say("Editing: Send replaces this message and the {count} messages after it.", count=after)
        return {
            self.edit_bar: gr.Row(visible=True),
            self.edit_note: note(words),
            self.edited: index,
        }

    def not_editing(self) -> dict[Any, Any]:
        """Nothing is edited."""
        return {self.edit_bar: gr.Row(visible=False), self.edit_note: "", self.edited: None}
