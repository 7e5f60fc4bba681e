"""`/health` says whether requests can be taken, and what is not active."""

from __future__ import annotations

import msgspec
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.server.fake_service import FakeService
from workbench.engine.messages import ServiceState
from workbench.server.live import build_live_router
from workbench.ui import explain


def health(service: FakeService) -> tuple[int, dict[str, object]]:
    app = FastAPI()
    app.include_router(build_live_router(service, explain))
    response = TestClient(app).get("/health")
    return response.status_code, response.json()


def test_health_is_200_with_model_epoch_and_notices_when_ready() -> None:
    service = FakeService()
    notice = "compiled kernels inactive: no compiler"
    service.status = msgspec.structs.replace(service.status, notices=(notice,))
    assert health(service) == (
        200,
        {"state": "ready", "model": "simulated", "epoch": 1, "notices": [notice], "error": None, "phase": ""},
    )


@pytest.mark.parametrize("state", [s for s in ServiceState if s is not ServiceState.READY])
def test_health_is_503_when_not_ready(state: ServiceState) -> None:
    service = FakeService()
    service.status = msgspec.structs.replace(service.status, state=state, error="no such file")
    code, body = health(service)
    assert (code, body["state"], body["error"]) == (503, state, "no such file")
