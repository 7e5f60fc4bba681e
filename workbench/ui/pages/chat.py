"""The Chat tab: the conversation, the visitor's request, and a button that loads the engine."""

from __future__ import annotations

from typing import Any, Final

import gradio as gr

from workbench.engine.service import EngineService
from workbench.ui.background import REQUESTS_PER_CLICK
from workbench.ui.chat_handlers import ChatHandlers
from workbench.ui.chat_widgets import ChatWidgets
from workbench.ui.components.block_map import compact_map
from workbench.ui.components.chat_tools import chat_tools
from workbench.ui.listeners import Listeners
from workbench.ui.load_handlers import LoadHandlers
from workbench.ui.localized import localized
from workbench.ui.notes import note
from workbench.ui.quiet import QUIET
from workbench.ui.replay_words import EMPTY_CHAT as EMPTY_REPLAY
from workbench.ui.replay_words import NOTHING_IS_COMPUTED
from workbench.ui.sidebar import Sidebar
from workbench.ui.suggestions import SUGGESTIONS

# Gradio translates one text in each string of a component, so these are one, and their first line stands out.
EMPTY_TEXT: Final = localized(
    "Ask the model something.\n"
    "The engine computes every answer here; its blocks, steps and figures are shown beside it."
)


def build_chat_page(
    page: gr.Blocks, service: EngineService, sidebar: Sidebar, listeners: Listeners | None = None
) -> None:
    """Lay out the Chat tab and wire its events. Call inside its `gr.Tab`."""
    widgets = _lay_out()
    handlers = ChatHandlers(service, widgets, listeners)
    _wire(handlers, sidebar, widgets)
    earlier = widgets.earlier_session
    page.load(handlers.come_back, earlier, widgets.outputs, queue=False, js=EARLIER_SESSION, **QUIET)
    _wire_load(LoadHandlers(service, handlers.turns), sidebar, widgets)


def build_replay_chat_page() -> None:
    """Lay out the Chat tab of a saved run: all stands where it stands elsewhere, and nothing can be pressed."""
    _lay_out(can_ask=False)


FOCUS_MESSAGE: Final = "() => document.querySelector('#wb-message textarea').focus()"
EARLIER_SESSION: Final = "() => { try { return sessionStorage.getItem('wb-session'); } catch { return null; } }"


def _wire(handlers: ChatHandlers, sidebar: Sidebar, widgets: ChatWidgets) -> None:
    own = [sidebar.system_prompt, *sidebar.sampling]
    # No limit here: the engine queues, and a request that waits must not keep others out.
    streaming: dict[str, Any] = {"outputs": widgets.outputs, "concurrency_limit": None, **QUIET}
    gr.on(
        [widgets.message.submit, widgets.send.click],
        handlers.send,
        [widgets.message, widgets.edited, *own],
        **streaming,
    )
    for button, suggestion in zip(widgets.suggestions, SUGGESTIONS, strict=True):
        button.click(handlers.sender_of(suggestion.text), own, **streaming)
    widgets.regenerate.click(handlers.regenerate, own, **streaming)
    widgets.drop_oldest.click(handlers.drop_oldest, own, **streaming)
    # Past the queue, so that they act at once.
    widgets.stop.click(handlers.stop, queue=False, **QUIET)
    widgets.clear.click(handlers.clear, None, widgets.outputs, queue=False, **QUIET)
    changed_by_edit = [widgets.message, *widgets.edit_outputs]
    edit = widgets.tools.select(handlers.begin_edit, None, changed_by_edit, queue=False, **QUIET)
    edit.then(None, js=FOCUS_MESSAGE, **QUIET)
    widgets.tools.option_select(handlers.choose, None, widgets.choice_outputs, queue=False, **QUIET)
    widgets.tools.expand(handlers.toggle_tokens, None, [widgets.chatbot, widgets.tools], queue=False, **QUIET)
    widgets.cancel_edit.click(handlers.cancel_edit, None, changed_by_edit, queue=False, **QUIET)


def _wire_load(load: LoadHandlers, sidebar: Sidebar, widgets: ChatWidgets) -> None:
    for button, handler, inputs in (
        (widgets.add_background, load.add, sidebar.sampling),
        (widgets.add_burst, load.burst, sidebar.sampling),
        (widgets.preempt, load.preempt, None),
    ):
        button.click(handler, inputs, widgets.background_note, queue=False, trigger_mode="multiple", **QUIET)


def _lay_out(*, can_ask: bool = True) -> ChatWidgets:
    """Lay out the tab; with nobody to ask, its controls are disabled and say why."""
    with gr.Row(elem_classes="wb-two", equal_height=False):
        with gr.Column(elem_classes="wb-chat", min_width=0):
            gr.HTML(f'<h2 class="wb-sr">{localized("Chat")}</h2>')
            parts: dict[str, Any] = {"chatbot": _chatbot(EMPTY_TEXT if can_ask else EMPTY_REPLAY)}
            with gr.Column(elem_classes="wb-composer", min_width=0):
                parts |= _context_bar() | _edit_bar()
                parts |= _suggestion_row(can_ask=can_ask) | _send_row(can_ask=can_ask)
        with gr.Column(elem_classes="wb-side", min_width=0):
            parts["request_map"] = compact_map()
            parts |= _load_card(can_ask=can_ask)
            parts["tools"] = chat_tools()
    return ChatWidgets(**parts)


def _chatbot(empty: Any) -> gr.Chatbot:
    """The conversation; `empty` is what stands in its place before there is one."""
    return gr.Chatbot(
        [],
        show_label=False,
        label=localized("Conversation"),
        layout="panel",
        height=None,
        placeholder=f"<div class='wb-empty wb-empty-chat'>{empty}</div>",
        buttons=[],
        feedback_options=None,
        latex_delimiters=[],
        allow_tags=False,
        allow_file_downloads=False,
        group_consecutive_messages=False,
        elem_id="wb-chatbot",
        elem_classes="wb-chatbot",
    )


def _context_bar() -> dict[str, Any]:
    """Says that the context is full, and offers what helps."""
    with gr.Row(elem_classes="wb-bar-row", visible=False) as bar:
        words = gr.HTML("", elem_id="wb-context-note")
        button = _small_button("Drop the oldest turns", "wb-drop-oldest")
    return {"context_bar": bar, "context_note": words, "drop_oldest": button}


def _edit_bar() -> dict[str, Any]:
    """Says which message is edited."""
    with gr.Row(elem_classes="wb-bar-row", visible=False) as bar:
        words = gr.HTML("", elem_id="wb-edit-note")
        button = _small_button("Cancel", "wb-edit-cancel")
    return {
        "edit_bar": bar,
        "edit_note": words,
        "cancel_edit": button,
        "edited": gr.Number(None, precision=0, visible=False),
        "earlier_session": gr.Textbox(None, visible=False),
    }


def _suggestion_row(*, can_ask: bool) -> dict[str, Any]:
    with gr.Row(elem_classes="wb-try"):
        gr.HTML(f'<span class="wb-sub">{localized("Try")}</span>', elem_classes="wb-try-label")
        suggestions = [
            gr.Button(localized(item.label), size="sm", interactive=can_ask, elem_classes="wb-suggestion", min_width=0)
            for item in SUGGESTIONS
        ]
        clear = _small_button("New chat", "wb-clear", interactive=can_ask)
        regenerate = _small_button("Regenerate", "wb-regenerate", interactive=False)
    return {"suggestions": suggestions, "clear": clear, "regenerate": regenerate}


def _send_row(*, can_ask: bool) -> dict[str, Any]:
    with gr.Row(elem_classes="wb-send-row"):
        message = gr.Textbox(
            show_label=False,
            label=localized("Message"),
            placeholder=localized(
                "Message…  Enter sends, Shift+Enter breaks the line" if can_ask else "Nothing is computed here"
            ),
            lines=1,
            max_lines=8,
            container=False,
            interactive=can_ask,
            elem_id="wb-message",
            autofocus=can_ask,
            min_width=0,
        )
        stop = gr.Button(localized("Stop"), interactive=False, elem_id="wb-stop", elem_classes="wb-tall", min_width=0)
        send = gr.Button(
            localized("Send"),
            variant="primary",
            interactive=can_ask,
            elem_id="wb-send",
            elem_classes="wb-tall",
            min_width=0,
        )
    return {"message": message, "stop": stop, "send": send}


def _load_card(*, can_ask: bool) -> dict[str, Any]:
    with gr.Column(elem_classes="wb-card", min_width=0):
        gr.HTML(f"<h3>{localized('Load the engine')}</h3>")
        words = localized("Sends real requests that share the pool with yours.") if can_ask else NOTHING_IS_COMPUTED
        gr.HTML(note(words))
        options: dict[str, Any] = {"size": "sm", "interactive": can_ask}
        button = gr.Button(
            localized(f"Add {REQUESTS_PER_CLICK} background requests"), elem_id="wb-background", **options
        )
        with gr.Row(elem_classes="wb-button-row"):
            burst = gr.Button(localized("Shared-prefix burst"), elem_id="wb-burst", min_width=0, **options)
            preempt = gr.Button(localized("Force preemption"), elem_id="wb-preempt", min_width=0, **options)
        said = gr.HTML("", elem_id="wb-background-note")
    return {"add_background": button, "add_burst": burst, "preempt": preempt, "background_note": said}


def _small_button(label: str, elem_id: str, *, interactive: bool = True) -> gr.Button:
    return gr.Button(
        localized(label), size="sm", interactive=interactive, min_width=0, elem_id=elem_id, elem_classes="wb-small"
    )
