"""Salmon's two endpoints for participants, for pages written for Salmon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, delete, select, update

from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store import participants, serving, session
from accelerando.crowd.store.answers import take_answer
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.participants import Person
from accelerando.crowd.store.schema import participant, served
from accelerando.crowd.web.context import Context, Ctx
from accelerando.crowd.web.participant_api import Name, cookie_name, set_participant
from accelerando.crowd.web.schemas import ErrorOut, ItemNumber, Seconds

__all__ = ["router"]

_RANDOM_SCORE = -9999.0
_ANONYMOUS = "salmon"  # the "device" of participants without a name
_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorOut} for code in (400, 401, 403, 404, 409, 413, 422, 503)
}

router = APIRouter(tags=["salmon"], responses=_REFUSALS)
Puid = Annotated[str, Query(max_length=200)]


class SalmonQuery(BaseModel):
    """A query in Salmon's format."""

    sampler: str
    score: float
    head: int
    left: int
    right: int
    query: str


class SalmonAnswer(BaseModel):
    """An answer in Salmon's format, with an optional ``query`` id."""

    model_config = ConfigDict(extra="ignore")

    head: ItemNumber
    left: ItemNumber
    right: ItemNumber
    winner: ItemNumber
    sampler: str = Field(default="", max_length=200)
    score: Seconds = 0.0
    puid: str = Field(default="", max_length=200)
    response_time: Seconds = -1.0
    network_latency: Seconds = -1.0
    query: Annotated[str, Field(pattern=r"^[0-9]{1,18}$")] | None = None


class SalmonDone(BaseModel):
    """The response to an answer that was stored."""

    success: bool


@router.get("/query", response_model=SalmonQuery, summary="Salmon: a query (first experiment)")
async def first_query(request: Request, context: Ctx, puid: Puid = "") -> JSONResponse:
    """Return ``/e/NAME/query`` of the oldest experiment."""
    return await _query(request, context, None, puid)


@router.post("/answer", response_model=SalmonDone, summary="Salmon: an answer (first experiment)")
async def first_answer(request: Request, context: Ctx, body: SalmonAnswer) -> JSONResponse:
    """Send to ``/e/NAME/answer`` of the oldest experiment."""
    return await _answer(request, context, None, body)


@router.get("/e/{name}/query", response_model=SalmonQuery, summary="Salmon: a query")
async def named_query(request: Request, name: Name, context: Ctx, puid: Puid = "") -> JSONResponse:
    """Return the open query of this participant, or a new one."""
    return await _query(request, context, name, puid)


@router.post("/e/{name}/answer", response_model=SalmonDone, summary="Salmon: an answer")
async def named_answer(
    request: Request, name: Name, context: Ctx, body: SalmonAnswer
) -> JSONResponse:
    """Store an answer if this participant has such an open query."""
    return await _answer(request, context, name, body)


async def _query(request: Request, context: Context, name: str | None, puid: str) -> JSONResponse:
    cookies = {**request.cookies}
    snapshot, person, row = await context.write(
        _ask, name, context.secret, puid, cookies, context.clock()
    )
    response = JSONResponse(
        {
            "sampler": row.sampler,
            "score": _RANDOM_SCORE if row.score is None else row.score,
            "head": row.head,
            "left": row.left,
            "right": row.right,
            "query": str(row.id),
        }
    )
    if not puid:
        set_participant(
            request, response, snapshot, participants.token(context.secret, snapshot, person.id)
        )
    return response


def _ask(
    connection: Connection,
    name: str | None,
    secret: bytes,
    puid: str,
    cookies: Mapping[str, str],
    clock: float,
) -> tuple[Snapshot, Person, Any]:
    snapshot = _find(connection, name)
    person = _person(connection, snapshot, secret, puid, cookies, clock)
    if person is None:
        made = participants.join(connection, snapshot, secret, {}, _ANONYMOUS, None, clock)
        person = participants.get(connection, snapshot, made.id, lock=True)
    _require_open(snapshot, person)
    rows, _ = serving.top_up(connection, snapshot, person, 1, clock)
    if not rows:
        raise ApiError("finished", "There is nothing left to ask.", 409)
    return snapshot, person, rows[0]


async def _answer(
    request: Request, context: Context, name: str | None, body: SalmonAnswer
) -> JSONResponse:
    cookies = {**request.cookies}
    await context.write(_take, name, context.secret, body, cookies, context.clock())
    return JSONResponse({"success": True})


def _take(
    connection: Connection,
    name: str | None,
    secret: bytes,
    body: SalmonAnswer,
    cookies: Mapping[str, str],
    clock: float,
) -> None:
    snapshot = _find(connection, name)
    person = _person(connection, snapshot, secret, body.puid, cookies, clock)
    row = None if person is None else _open(connection, snapshot, body, of=person.id)
    if row is None:
        # A query that was assigned without a name belongs to the first who answers it.
        row = _open(connection, snapshot, body, of=None)
        if row is not None and person is None:
            person = participants.get(connection, snapshot, row.participant_id, lock=True)
        elif row is not None and person is not None:
            _require_open(snapshot, person)
            _hand_over(connection, snapshot, row, person)
    if row is None or person is None:
        raise ApiError(
            "unknown_query", "This query was not asked, or it has been answered already.", 404
        )
    latency = body.network_latency if body.network_latency >= 0 else None
    seconds = body.response_time if body.response_time >= 0 else None
    take_answer(connection, snapshot, person, row.id, body.winner, seconds, latency, clock)


def _find(connection: Connection, name: str | None) -> Snapshot:
    if name is None:
        there = stored.names(connection)
        if not there:
            raise ApiError("unknown_experiment", "There is no experiment on this server.", 404)
        name = there[0]
    return stored.find(connection, name)


def _person(
    connection: Connection,
    snapshot: Snapshot,
    secret: bytes,
    puid: str,
    cookies: Mapping[str, str],
    clock: float,
) -> Person | None:
    """Return the participant by name or by cookie; None without either."""
    if puid:
        named = {next(iter(snapshot.frame.settings.participants.id_parameters), "puid"): puid}
        made = participants.join(connection, snapshot, secret, named, "", None, clock)
        return participants.get(connection, snapshot, made.id, lock=True)
    known = participants.read_token(secret, snapshot, cookies.get(cookie_name(snapshot.frame.name)))
    return None if known is None else participants.get(connection, snapshot, known, lock=True)


def _require_open(snapshot: Snapshot, person: Person) -> None:
    if snapshot.paused:
        raise ApiError("paused", "The experiment is paused.", 409)
    if session.needs_consent(snapshot, person):
        raise ApiError("consent_required", "This experiment asks for consent first.", 409)
    if person.state == "blocked" or person.outcome is not None:
        raise ApiError("finished", "This session has ended.", 409)


def _open(connection: Connection, snapshot: Snapshot, body: SalmonAnswer, of: int | None) -> Any:
    """Return the open query of this participant, or of participants without a name."""
    wanted = [
        served.c.experiment_id == snapshot.frame.id,
        served.c.head == body.head,
        served.c.left == body.left,
        served.c.right == body.right,
        served.c.open,
    ]
    if of is not None:
        wanted.append(served.c.participant_id == of)
    else:
        nameless = select(participant.c.id).where(
            participant.c.experiment_id == snapshot.frame.id, participant.c.device == _ANONYMOUS
        )
        wanted.append(served.c.participant_id.in_(nameless))
    if body.query is not None:
        wanted.append(served.c.id == int(body.query))
    return connection.execute(select(served).where(*wanted).order_by(served.c.at).limit(1)).first()


def _hand_over(connection: Connection, snapshot: Snapshot, row: Any, person: Person) -> None:
    connection.execute(
        update(served)
        .where(served.c.experiment_id == snapshot.frame.id, served.c.id == row.id)
        .values(participant_id=person.id)
    )
    left = connection.execute(
        select(served.c.id).where(served.c.participant_id == row.participant_id).limit(1)
    ).first()
    if left is None:
        connection.execute(delete(participant).where(participant.c.id == row.participant_id))
