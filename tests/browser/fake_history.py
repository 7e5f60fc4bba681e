"""`/history/frame` of a `FakeService`, rebuilt from its records for every question.

It holds the state that the records describe, not what a server has folded: an oracle for the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from unittest import mock

import fastapi
from fastapi import APIRouter, Response
from starlette.responses import JSONResponse

from tests.browser.map_page import build_map_app
from tests.server.fake_service import FakeRecorder, FakeService
from workbench.server.feed import LiveFeed
from workbench.telemetry.frames import decode, encode
from workbench.telemetry.records import StepRecord
from workbench.ui import explain

INSTANCE = 7
"""Of the process, in live and in recorded frames."""


class ServiceAt:
    """The door of a `FakeService` as it was after an earlier step."""

    def __init__(self, service: FakeService, step_id: int) -> None:
        self.config, self.status = service.config, service.status
        self.recorder = FakeRecorder()
        self.recorder.records = [record for record in service.recorder.records if record.step_id <= step_id]

    def subscribe(self, listener: Callable[[StepRecord], None]) -> Callable[[], None]:
        return lambda: None


@dataclass
class FakeHistory:
    """The recorded steps of a service from `first_step` on. `asked` are the steps that the page wanted."""

    service: FakeService
    first_step: int = 0
    instance: int = INSTANCE
    asked: list[int] = field(default_factory=list)

    def frame(self, step_id: int) -> bytes:
        """The full frame of the state after a step."""
        feed = LiveFeed(ServiceAt(self.service, step_id), explain)
        feed.instance = self.instance
        feed.drain()
        frame = decode(feed.frame(0))
        transfers = [row for row in frame.body["transfers"] if row[0] == step_id]
        return encode(replace(frame, version=0, body={**frame.body, "transfers": transfers}))

    def router(self) -> APIRouter:
        router = APIRouter()

        @router.get("/history/frame")
        def answer(step: int) -> Response:
            self.asked.append(step)
            last = self.service.engine.step_id
            if not self.first_step <= step <= last:
                text = f"step {step} is not recorded: steps {self.first_step} to {last} are"
                return JSONResponse({"error": text}, status_code=404)
            return Response(self.frame(step), media_type="application/octet-stream")

        return router


def build_recorded_app(history: FakeHistory) -> fastapi.FastAPI:
    """The page of `build_map_app` with a history beside its live feed."""
    with mock.patch("workbench.server.feed.secrets.randbits", return_value=INSTANCE):
        return build_map_app(history.service, history.router())
