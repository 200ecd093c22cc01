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
from accelerando.crowd.web.cookies import cookie_of, drop_cookie, set_cookie
from accelerando.crowd.web.limits import limit_sessions
from accelerando.crowd.web.origin import require_same_origin
from accelerando.crowd.web.schemas import (
    AnswerIn,
    ConsentIn,
    ErrorOut,
    ParticipantIn,
    QueriesIn,
    ReplaceIn,
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
    return cookie_of(request, cookie_name(name))


async def _write(
    request: Request, context: Context, function: Callable[..., Standing], *arguments: Any
) -> JSONResponse:
    # Browsers name the page that makes a request; pages of other sites have no business here.
    require_same_origin(request)
    return await run(request, context.write, context, function, *arguments)


async def run(
    request: Request,
    transact: Callable[..., Any],
    context: Context,
    function: Callable[..., Standing],
    *arguments: Any,
) -> JSONResponse:
    """Run a step of a session in a transaction and return the session as JSON."""

    def work(connection: Connection) -> tuple[Standing, list[Item]]:
        standing = function(connection, *arguments)
        return standing, context.items(connection, standing.snapshot)

    standing, items = await transact(work)
    root = request.scope.get("root_path", "")
    shown = session_json(standing, items, context.secret, root)
    response = JSONResponse(shown)
    # Clients that send the token in a header need no cookie.
    if shown["token"] and "authorization" not in request.headers:
        set_participant(request, response, standing.snapshot, shown["token"])
    if standing.person is None and standing.outcome == "no_consent":
        drop_cookie(request, response, cookie_name(standing.snapshot.frame.name))
    return response


def set_participant(request: Request, response: Response, snapshot: Snapshot, token: str) -> None:
    """Store the participant's token in a cookie."""
    name = cookie_name(snapshot.frame.name)
    if cookie_of(request, name) != token:
        set_cookie(request, response, name, token, seconds=_YEAR)


@router.post("/participants", response_model=SessionOut, summary="Start or continue a session")
async def begin(request: Request, name: Name, body: ParticipantIn, context: Ctx) -> JSONResponse:
    """Create a session, or continue one that the request proves to be the participant's own.

    Proofs are the session's token, the number in ``browser``, or a personal link.
    """
    shown = shown_token(request, name)
    await limit_sessions(context, request, name, shown, body.parameters)
    return await _write(
        request,
        context,
        session.begin,
        name,
        context.secret,
        body.parameters,
        body.device,
        shown,
        body.count,
        context.clock(),
        body.browser,
    )


@router.post("/consent", response_model=SessionOut, summary="Agree to take part, or not")
async def consent(request: Request, name: Name, body: ConsentIn, context: Ctx) -> JSONResponse:
    """Record consent. If the experiment asks for it, queries come after ``agreed: true`` only.

    Of people who refuse at the start nothing but their number is kept, and no cookie.
    """
    shown = shown_token(request, name)
    return await _write(
        request, context, session.consent, name, context.secret, shown, body.agreed, context.clock()
    )


@router.get("/queries", response_model=SessionOut, summary="Open queries")
async def queries(request: Request, name: Name, context: Ctx, count: Count = 2) -> JSONResponse:
    """Return the open queries, the same ones after a reload. It assigns no new ones."""
    shown = shown_token(request, name)
    return await run(
        request, context.read, context, session.see, name, context.secret, shown, count
    )


@router.post("/queries", response_model=SessionOut, summary="Open queries, and new ones")
async def more_queries(request: Request, name: Name, body: QueriesIn, context: Ctx) -> JSONResponse:
    """Return the open queries, and assign new ones until there are ``count``."""
    return await _write(
        request,
        context,
        session.look,
        name,
        context.secret,
        shown_token(request, name),
        body.count,
        context.clock(),
    )


@router.post("/queries/replace", response_model=SessionOut, summary="Items did not load")
async def replace(request: Request, name: Name, body: ReplaceIn, context: Ctx) -> JSONResponse:
    """Replace a query whose items did not load. Nothing is stored but a count per item."""
    return await _write(
        request,
        context,
        session.replace,
        name,
        context.secret,
        shown_token(request, name),
        int(body.query),
        sorted(set(body.failed)),
        body.count,
        context.clock(),
    )


@router.post("/answers", response_model=SessionOut, summary="Answer a query, or skip it")
async def answers(request: Request, name: Name, body: AnswerIn, context: Ctx) -> JSONResponse:
    """Store an answer. It is stored once, and it is on disk before the response."""
    return await _write(
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
    """Withdraw all answers of this session; they are deleted after the experiment's delay."""
    shown = shown_token(request, name)
    return await _write(
        request, context, session.withdraw, name, context.secret, shown, context.clock()
    )


def _seconds(value: float | None) -> float | None:
    """Return a time that a browser measured, or None if it is implausible."""
    return value if value is not None and 0 <= value < 1e6 else None
