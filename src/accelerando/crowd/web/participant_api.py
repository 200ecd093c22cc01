"""HTTP interface of participants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import Connection

from accelerando.crowd.experiment import Item
from accelerando.crowd.store import session
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.session import Standing
from accelerando.crowd.web.context import Context, Ctx
from accelerando.crowd.web.schemas import (
    AnswerIn,
    ConsentIn,
    ErrorOut,
    ParticipantIn,
    SessionOut,
    session_json,
)

__all__ = ["Name", "cookie_name", "router", "set_participant", "shown_token"]

Name = Annotated[
    str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="The experiment's name.")
]
Count = Annotated[int, Query(ge=0, le=5, description="Number of open queries.")]

_YEAR = 365 * 24 * 3600
_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorOut} for code in (400, 401, 403, 404, 409, 413, 422, 503)
}

router = APIRouter(prefix="/api/v1/experiments/{name}", tags=["participant"], responses=_REFUSALS)


def cookie_name(name: str) -> str:
    """Return the name of the cookie with the participant's token."""
    return f"accelerando_participant_{name}"


def shown_token(request: Request, name: str) -> str | None:
    """Return the token of a request, from its header or its cookie."""
    header = request.headers.get("authorization", "")
    if header[:7].lower() == "bearer ":
        return header[7:].strip()
    return request.cookies.get(cookie_name(name))


async def run(
    request: Request, context: Context, function: Callable[..., Standing], *arguments: Any
) -> JSONResponse:
    """Run a step of a session in a transaction and return the session as JSON."""

    def work(connection: Connection) -> tuple[Standing, list[Item]]:
        standing = function(connection, *arguments)
        return standing, context.items(connection, standing.snapshot)

    standing, items = await context.write(work)
    root = request.scope.get("root_path", "")
    shown = session_json(standing, items, context.secret, root)
    response = JSONResponse(shown)
    # Clients that send the token in a header need no cookie.
    if shown["token"] and "authorization" not in request.headers:
        set_participant(request, response, standing.snapshot, shown["token"])
    return response


def set_participant(request: Request, response: Response, snapshot: Snapshot, token: str) -> None:
    """Store the participant's token in a cookie."""
    name = cookie_name(snapshot.frame.name)
    if request.cookies.get(name) != token:
        response.set_cookie(
            name,
            token,
            max_age=_YEAR,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
            path=f"{request.scope.get('root_path', '')}/",
        )


@router.post("/participants", response_model=SessionOut, summary="Start or continue a session")
async def begin(request: Request, name: Name, body: ParticipantIn, context: Ctx) -> JSONResponse:
    """Create a session, or find the earlier one of this browser or this participant's link."""
    return await run(
        request,
        context,
        session.begin,
        name,
        context.secret,
        body.parameters,
        body.device,
        shown_token(request, name),
        body.count,
        context.clock(),
    )


@router.post("/consent", response_model=SessionOut, summary="Agree to take part, or not")
async def consent(request: Request, name: Name, body: ConsentIn, context: Ctx) -> JSONResponse:
    """Record consent. If the experiment asks for it, queries come after ``agreed: true`` only."""
    shown = shown_token(request, name)
    return await run(
        request, context, session.consent, name, context.secret, shown, body.agreed, context.clock()
    )


@router.get("/queries", response_model=SessionOut, summary="Open queries")
async def queries(request: Request, name: Name, context: Ctx, count: Count = 2) -> JSONResponse:
    """Return the open queries, the same ones after a reload, with new ones up to ``count``."""
    shown = shown_token(request, name)
    return await run(
        request, context, session.look, name, context.secret, shown, count, context.clock()
    )


@router.post("/answers", response_model=SessionOut, summary="Answer a query, or skip it")
async def answers(request: Request, name: Name, body: AnswerIn, context: Ctx) -> JSONResponse:
    """Store an answer. It is stored once, and it is on disk before the response."""
    return await run(
        request,
        context,
        session.answer,
        name,
        context.secret,
        shown_token(request, name),
        int(body.query),
        body.winner,
        _seconds(body.response_time),
        _seconds(body.network_latency),
        body.count,
        context.clock(),
    )


@router.post("/withdraw", response_model=SessionOut, summary="Withdraw")
async def withdraw(request: Request, name: Name, context: Ctx) -> JSONResponse:
    """Delete all answers of this participant."""
    shown = shown_token(request, name)
    return await run(
        request, context, session.withdraw, name, context.secret, shown, context.clock()
    )


def _seconds(value: float | None) -> float | None:
    """Return a time that a browser measured, or None if it is implausible."""
    return value if value is not None and 0 <= value < 1e6 else None
