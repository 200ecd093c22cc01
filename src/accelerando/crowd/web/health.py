"""Routes about the health of the service: live, ready, and numbers for Prometheus."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import Connection, func, select, update
from sqlalchemy.exc import DBAPIError

from accelerando.crowd.store import statistics
from accelerando.crowd.store.errors import ApiError, NoConnectionError, classify
from accelerando.crowd.store.schema import meta, participant
from accelerando.crowd.store.store import insert_or_ignore
from accelerando.crowd.web import roles
from accelerando.crowd.web.auth import Experimenter
from accelerando.crowd.web.context import Context, Ctx

__all__ = ["router"]

_KEPT_SECONDS = 2.0
_PATIENCE = 20.0  # seconds; longer than waiting for a lock of PostgreSQL
_SHORTEST_TOKEN = 16

router = APIRouter(tags=["health"])


@router.get("/health/live", summary="Does the process answer?")
async def live() -> dict[str, bool]:
    """Return ``ok``. A process that does not answer must be restarted."""
    return {"ok": True}


@router.get("/health", summary="Can the service do its work?")
@router.get("/health/ready", summary="Can the service do its work?")
async def ready(context: Ctx) -> Response:
    """Return 200 if the database stores and returns a value and the worker lives, else 503.

    The result is kept for two seconds, so that asking often costs nothing.
    """
    found = await _probe(context)
    ok = all(value == "ok" for value in found.values())
    return JSONResponse({"ok": ok, **found}, 200 if ok else 503)


async def _probe(context: Context) -> dict[str, str]:
    until, kept = context.cache.get("health", (0.0, {}))
    if time.monotonic() < until:
        return dict(kept)
    found = {"database": "ok", "worker": "unknown"}
    try:
        value = secrets.token_hex(8)
        async with asyncio.timeout(_PATIENCE):
            await context.write(_note, value)
        read, health = await context.read(_read_back, context.clock())
        if read is None:
            found["database"] = "damaged"
        found["worker"] = "ok" if health["worker"]["alive"] else "not seen"
        if health["worker"]["error"]:
            found["worker"] = "failing"
    except ApiError:
        found["database"] = "damaged"
    except TimeoutError:  # it is frozen, or the way to it takes everything and returns nothing
        found["database"] = "no answer"
    except (DBAPIError, NoConnectionError) as error:
        found["database"] = classify(error)
        context.damaged = context.damaged or found["database"] == "damaged"
    context.cache["health"] = time.monotonic() + _KEPT_SECONDS, found
    return found


def _note(connection: Connection, value: str) -> None:
    """Write a value, which reaches the disk with the commit."""
    row = {"key": "health", "value": value}
    connection.execute(insert_or_ignore(connection, meta), row)
    connection.execute(update(meta).where(meta.c.key == "health").values(value=value))


def _read_back(connection: Connection, clock: float) -> tuple[str | None, dict[str, Any]]:
    # Another process may have written a later value.
    value = connection.execute(select(meta.c.value).where(meta.c.key == "health")).scalar()
    return value, statistics.health(connection, clock)


@router.get("/api/v1/health", summary="Worker, queue and database")
async def full_health(context: Ctx, who: Experimenter) -> dict[str, Any]:
    """Return the state of the worker and the length of the queues."""
    found = await context.read(statistics.health, context.clock())
    names = await context.read(roles.visible, who)
    found["worker"]["error"] = statistics.visible_error(found["worker"]["error"], names)
    return found


@router.get("/metrics", response_class=Response, summary="Numbers for Prometheus")
async def metrics(request: Request, context: Ctx) -> Response:
    """Return numbers in Prometheus' format.

    The request needs the header ``Authorization: Bearer TOKEN`` with the token in the environment
    variable ``ACCELERANDO_METRICS_TOKEN`` of the server. Without the variable there is no such
    page.
    """
    token = os.environ.get("ACCELERANDO_METRICS_TOKEN", "")
    if len(token) < _SHORTEST_TOKEN:
        raise ApiError("not_found", "There is no such page.", 404)
    shown = request.headers.get("authorization", "")
    if not hmac.compare_digest(shown.encode(), f"Bearer {token}".encode()):
        raise ApiError("sign_in", "This page needs the token of the metrics.", 401)
    found = await _probe(context)
    numbers: dict[str, float] = {
        "crowd_database_ok": found["database"] == "ok",
        "crowd_worker_ok": found["worker"] == "ok",
    }
    if found["database"] == "ok":
        numbers |= await context.read(_numbers, context.clock())
    lines = [f"# TYPE {name} gauge\n{name} {float(value):g}" for name, value in numbers.items()]
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


def _numbers(connection: Connection, clock: float) -> dict[str, float]:
    people, answered = connection.execute(
        select(func.count(), func.coalesce(func.sum(participant.c.answered), 0))
    ).one()
    health = statistics.health(connection, clock)
    age = health["worker"]["seen_seconds_ago"]
    return {
        "crowd_participants": people,
        "crowd_answers": answered,
        "crowd_queued_queries": health["queued"],
        "crowd_worker_seen_seconds": -1.0 if age is None else age,
        "crowd_worker_turns": health["worker"]["turns"],
    }
