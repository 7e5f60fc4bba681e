"""`GET /health`: whether the engine can take requests, and what is not active in it."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from workbench.server.feed import EngineDoor

READY_STATE = "ready"


def build_health_router(service: EngineDoor) -> APIRouter:
    """Return a router with `/health`: 200 when ready, 503 while loading, reloading, failed or stopped."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> JSONResponse:
        """State, model, epoch, inactive features and, when loading failed, the cause."""
        status = service.status
        body = {
            "state": str(status.state),
            "model": status.model_name,
            "epoch": status.epoch,
            "notices": list(status.notices),
            "error": status.error,
            "phase": status.phase,
        }
        is_ready = str(status.state) == READY_STATE
        return JSONResponse(body, 200 if is_ready else 503, headers={"Cache-Control": "no-store"})

    return router
