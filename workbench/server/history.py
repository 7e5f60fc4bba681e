"""`/history/…`: the range of steps, the state after any of them, rows for a timeline, and one step in detail."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from workbench.server.feed import LiveFeed
from workbench.server.feed_finder import FindFeed, feed_dependency
from workbench.server.origin import is_same_host
from workbench.server.state_frame import Words
from workbench.telemetry.history import StepNotRecordedError
from workbench.telemetry.records import StepRecord
from workbench.telemetry.run_file import write_run
from workbench.telemetry.trace import encode_trace

MOST_STEPS: Final = 2000
"""Steps in one answer of `/history/steps`."""
NO_STORE: Final = {"Cache-Control": "no-store"}


def _check_origin(request: Request) -> None:
    if not is_same_host(request.headers):
        raise HTTPException(403, "the history answers pages of its own host only")


def build_history_router(find: FindFeed, words: Words) -> APIRouter:
    """Return a router over what a feed has folded. It never asks the engine.

    Args:
        find: finds the feed; its keys and colours are those of the history.
        words: turns decisions into sentences.
    """
    router = APIRouter(prefix="/history", dependencies=[Depends(_check_origin)])
    feed_of = feed_dependency(find)

    @router.get("/range")
    async def steps_known(feed: LiveFeed = feed_of) -> JSONResponse:
        """Which steps can be looked at."""
        await feed.catch_up()
        body = {
            "instance": feed.instance,
            "epoch": feed.state.epoch,
            "first": feed.history.first_step,
            "last": feed.history.last_step,
            "num_blocks": feed.state.num_blocks,
            "block_size": feed.state.block_size,
        }
        return JSONResponse(body, headers=NO_STORE)

    @router.get("/frame")
    async def frame(step: int, feed: LiveFeed = feed_of) -> Response:
        """The state after a step, as a full frame."""
        await feed.catch_up()
        try:
            return _binary(feed.past_frame(step))
        except StepNotRecordedError as error:
            return _not_recorded(error)

    @router.get("/steps")
    async def steps(
        after: int = -1, epoch: int = 0, instance: int = 0, limit: int = MOST_STEPS, feed: LiveFeed = feed_of
    ) -> Response:
        """Rows of the steps after one; from our first one on for a client that knows another engine."""
        await feed.catch_up()
        is_ours = epoch == feed.state.epoch and instance in (0, feed.instance)
        return _binary(feed.history.chunk(feed.instance, after if is_ours else -1, max(1, min(limit, MOST_STEPS))))

    @router.get("/step")
    async def step_in_detail(step: int, feed: LiveFeed = feed_of) -> JSONResponse:
        """Times, tokens, blocks and reasons of one step."""
        await feed.catch_up()
        try:
            record, keys = feed.history.record_at(step), feed.history.keys_at(step)
        except StepNotRecordedError as error:
            return _not_recorded(error)
        return JSONResponse(describe_step(record, keys, words), headers=NO_STORE)

    @router.get("/save")
    async def save(redacted: int = 0, feed: LiveFeed = feed_of) -> Response:
        """The run as a file that `app.py --replay` opens."""
        await feed.catch_up()
        try:
            base, records = feed.history.base_and_records()
        except StepNotRecordedError as error:
            return _not_recorded(error)
        status, layout = feed.service_facts()
        was_redacted = feed.saved_run is not None and feed.saved_run.is_redacted
        data = write_run(base, records, status, layout, is_redacted=bool(redacted) or was_redacted)
        return _download(data, "application/gzip", "run", "jsonl.gz")

    @router.get("/trace")
    async def trace(feed: LiveFeed = feed_of) -> Response:
        """The run as trace events for chrome://tracing and ui.perfetto.dev."""
        await feed.catch_up()
        try:
            _, records = feed.history.base_and_records()
        except StepNotRecordedError as error:
            return _not_recorded(error)
        rows = feed.history.rows_after(-1, len(records))
        facts = {each.key: replace(each) for each in feed.history.facts_of(rows)}
        status, _ = feed.service_facts()
        data = encode_trace(records, rows, facts, f"engine · {status['model_name']}")
        return _download(data, "application/json", "trace", "json")

    return router


def describe_step(record: StepRecord, keys: dict[str, int], words: Words) -> dict[str, Any]:
    """Return a record as the step inspector shows it. `keys` are those of the step's requests, by id."""
    return {
        "step": record.step_id,
        "started_s": record.started_s,
        "duration_ms": record.duration_s * 1000,
        "draft_ms": record.draft_s * 1000,
        "schedule_ms": record.schedule_s * 1000,
        "execute_ms": record.execute_s * 1000,
        "update_ms": record.update_s * 1000,
        "tokens": {
            "scheduled": record.num_scheduled_tokens,
            "prefill": record.num_prefill_tokens,
            "decode": record.num_decode_tokens,
            "budget": record.max_num_batched_tokens,
        },
        "blocks": {
            "total": record.num_blocks,
            "free": record.num_free_blocks,
            "active": record.num_active_blocks,
            "cached": record.num_cached_blocks,
        },
        "swap": {"total": record.num_swap_blocks, "free": record.num_free_swap_blocks},
        "waste": {"slots": record.internal_waste_slots, "blocks": record.external_waste_blocks},
        "running": record.num_running,
        "waiting": record.num_waiting,
        "explanations": [
            {
                "key": keys.get(told.request_id),
                "id": told.request_id,
                "decision": told.decision.value,
                "reason": told.reason.value,
                "numbers": told.numbers,
                "cause": told.cause_request_id,
                "text": words.explain(told),
            }
            for told in record.explanations
        ],
        "transfers": [
            [moved.kind.value, moved.source_id, moved.target_id, moved.request_id] for moved in record.transfers
        ],
        "drafts": [
            [keys.get(state.request_id), state.request_id, state.num_draft_tokens, state.num_accepted_tokens]
            for state in record.requests
            if state.num_draft_tokens
        ],
        "lookups": {"looked_up": record.num_looked_up_tokens, "cached": record.num_cached_tokens},
    }


def _download(data: Iterator[bytes], kind: str, name: str, suffix: str) -> Response:
    """A file that is made while it is sent, in a thread of its own: the feed goes on meanwhile."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    disposition = f'attachment; filename="workbench-{name}-{today}.{suffix}"'
    return StreamingResponse(data, media_type=kind, headers=NO_STORE | {"Content-Disposition": disposition})


def _binary(data: bytes) -> Response:
    return Response(data, media_type="application/octet-stream", headers=NO_STORE)


def _not_recorded(error: StepNotRecordedError) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 404, headers=NO_STORE)
