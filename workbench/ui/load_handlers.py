"""What the buttons do that load the engine and disturb it, so that there is something to see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from workbench.engine.service import EngineService
from workbench.errors import WorkbenchError
from workbench.speculation_params import NO_SPECULATION, SpeculationParams
from workbench.telemetry.records import RequestStatus
from workbench.ui.active_turns import ActiveTurns
from workbench.ui.background import BackgroundLoad
from workbench.ui.chat_handlers import session_of
from workbench.ui.localized import texts_for
from workbench.ui.notes import note
from workbench.ui.phases import belongs_to
from workbench.ui.prefix_burst import REQUESTS, PrefixBurst
from workbench.ui.sampling_form import speculation_settings


@dataclass
class LoadHandlers:
    """The handlers of one page. Each returns the note below the buttons: what was done, or why not.

    Arguments after the request are the visitor's form: added requests are drafted as it says.
    """

    service: EngineService
    turns: ActiveTurns
    """Answers under way, by visitor."""
    load: BackgroundLoad = field(init=False)

    def __post_init__(self) -> None:
        self.load = BackgroundLoad(self.service)

    async def add(self, request: gr.Request, *form: Any) -> str:
        """Add background requests of varied length."""
        try:
            ids = self.load.add(speculation=_drafting(form))
        except WorkbenchError as error:
            return note(str(error), is_error=True)
        say, count = texts_for(request), self.load.num_unfinished
        return note(say("Added {first} to {last}; {count} under way.", first=ids[0], last=ids[-1], count=count))

    async def burst(self, request: gr.Request, *form: Any) -> str:
        """Add requests whose prompts begin alike."""
        try:
            first = PrefixBurst(self.service, self.load, _drafting(form)).start()
        except WorkbenchError as error:
            return note(str(error), is_error=True)
        say, count = texts_for(request), REQUESTS - 1
        if not self.service.config.enable_prefix_caching or self.service.config.kv_layout == "contiguous":
            words = "Added {first}; {count} more follow. Nothing is shared: the prefix cache is off."
        else:
            words = "Added {first}; {count} more follow once their common prefix is computed, and share it."
        return note(say(words, first=first, count=count))

    async def preempt(self, request: gr.Request) -> str:
        """Preempt the visitor's own answer; where none is under way, the newest background request that runs."""
        say, victims = texts_for(request), self._victims(session_of(request))
        if not victims:
            return note(say("Nothing of yours runs. Send a message or add background requests first."))
        try:
            for request_id in victims:
                self.service.preempt(request_id)
        except WorkbenchError as error:
            return note(str(error), is_error=True)
        return note(say("{names} has to make room in the next step and goes on later.", names=", ".join(victims)))

    def _victims(self, session: str) -> tuple[str, ...]:
        """Return whom to preempt: requests that run, of this visitor or of the background load."""
        newest = self.service.recorder.latest
        running = [r.request_id for r in newest.requests if r.status is RequestStatus.RUNNING] if newest else []
        own = [name for name in self.turns.request_ids(session) if any(belongs_to(each, name) for each in running)]
        return tuple(own) or tuple(name for name in self.load.open_ids if name in running)[-1:]


def _drafting(form: Sequence[Any]) -> SpeculationParams:
    """How the visitor wants tokens drafted. These requests have no beams, whatever the form says of them."""
    return speculation_settings(form) if form else NO_SPECULATION
