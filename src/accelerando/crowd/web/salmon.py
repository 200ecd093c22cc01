"""Salmon's two endpoints for participants, for pages written for Salmon.

They exist for experiments that ask for them: Salmon's ``init.yaml``, or ``salmon_routes: true``.
Salmon asks for a query by GET, which must not change anything. The query is therefore chosen in a
transaction that is rolled back, and it is handed out with a signature, in a cookie and in the field
``query``. The answer brings the signature back, and only then are participant, query and answer
stored. So nobody can take a query away from somebody else, or answer one that was never asked.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, select, update

from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store import lookups, participants, serving, session
from accelerando.crowd.store.answers import take_answer
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.participants import Person
from accelerando.crowd.store.schema import served
from accelerando.crowd.web.context import Context, Ctx
from accelerando.crowd.web.cookies import cookie_of, set_cookie
from accelerando.crowd.web.limits import limit_sessions
from accelerando.crowd.web.origin import require_same_origin
from accelerando.crowd.web.participant_api import Name, cookie_name, set_participant
from accelerando.crowd.web.schemas import ErrorOut, ItemNumber, Seconds

__all__ = ["router"]

_RANDOM_SCORE = -9999.0
_HOURS = 12.0
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
    """An answer in Salmon's format; ``query`` may come in the cookie instead."""

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
    query: Annotated[str, Field(max_length=1000)] | None = None


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
    clock = context.clock()
    try:
        await context.write(_propose, name, context.secret, puid, request, clock)
    except _ProposedError as proposed:  # nothing was written
        snapshot, row, own = proposed.snapshot, proposed.row, proposed.own
    signed = _sign(context.secret, snapshot, row, puid, own, clock)
    response = JSONResponse(
        {
            "sampler": _shown_sampler(snapshot, row),
            "score": _RANDOM_SCORE if row.score is None else row.score,
            "head": row.head,
            "left": row.left,
            "right": row.right,
            "query": signed,
        }
    )
    set_cookie(request, response, _cookie(snapshot), signed, seconds=_HOURS * 3600)
    return response


class _ProposedError(ApiError):
    """Carries a query out of a transaction that is rolled back."""

    def __init__(self, snapshot: Snapshot, row: Any, own: str) -> None:
        super().__init__("proposed", "A query was proposed.")
        self.snapshot, self.row, self.own = snapshot, row, own


def _propose(
    connection: Connection,
    name: str | None,
    secret: bytes,
    puid: str,
    request: Request,
    clock: float,
) -> None:
    """Raise _ProposedError with the query that this participant would get now."""
    snapshot = _find(connection, name)
    person = _person(connection, snapshot, secret, puid, request, clock)
    _require_open(snapshot, person)
    # Many may look before anybody answers, and they should not all see the first of the queue.
    rows, _ = serving.top_up(connection, snapshot, person, 1, clock, anywhere=True)
    if not rows:
        raise ApiError("finished", "There is nothing left to ask.", 409)
    raise _ProposedError(snapshot, rows[0], person.secret)


async def _answer(
    request: Request, context: Context, name: str | None, body: SalmonAnswer
) -> JSONResponse:
    require_same_origin(request)
    found = await context.read(_find, name)
    chosen = found.frame.name
    shown = cookie_of(request, cookie_name(chosen))
    await limit_sessions(context, request, chosen, shown, _named(found, body.puid))
    snapshot, person = await context.write(
        _take, name, context.secret, body, request, context.clock()
    )
    response = JSONResponse({"success": True})
    token = participants.token(context.secret, snapshot, person)
    set_participant(request, response, snapshot, token)
    return response


def _take(
    connection: Connection,
    name: str | None,
    secret: bytes,
    body: SalmonAnswer,
    request: Request,
    clock: float,
) -> tuple[Snapshot, Person]:
    snapshot = _find(connection, name)
    asked = _read(secret, snapshot, body.query, clock)
    if asked is None:
        asked = _read(secret, snapshot, cookie_of(request, _cookie(snapshot)), clock)
    unknown = ApiError(
        "unknown_query", "This query was not asked, or it has been answered already.", 404
    )
    same = asked is not None and all(
        asked[part] == getattr(body, part) for part in ("head", "left", "right")
    )
    if asked is None or not same or asked["puid"] not in ("", body.puid):
        raise unknown
    # Who answers for the first time becomes the participant to whom the query was proposed.
    person = _person(connection, snapshot, secret, body.puid, request, clock, asked["own"])
    _require_open(snapshot, person)
    # The participant's samplers take the step that was proposed; then this query takes its place.
    rows, _ = serving.top_up(connection, snapshot, person, 1, clock)
    taken = connection.execute(
        select(served.c.id).where(
            served.c.experiment_id == snapshot.frame.id, served.c.id == asked["id"]
        )
    ).first()
    if not rows or taken is not None:
        raise unknown
    values: dict[str, Any] = {"id": asked["id"]}
    if any(getattr(rows[0], part) != asked[part] for part in ("head", "left", "right")):
        values = {part: asked[part] for part in _SIGNED if part not in ("puid", "own", "until")}
        low, high = sorted((body.left, body.right))
        values |= {"kind": "query", "low": low, "high": high, "winner": None}
    connection.execute(
        update(served)
        .where(served.c.experiment_id == snapshot.frame.id, served.c.id == rows[0].id)
        .values(at=clock, **values)
    )
    lookups.take_out(connection, snapshot, body.head, body.left, body.right)
    latency = body.network_latency if body.network_latency >= 0 else None
    seconds = body.response_time if body.response_time >= 0 else None
    person = participants.get(connection, snapshot, person.id)
    take_answer(connection, snapshot, person, asked["id"], body.winner, seconds, latency, clock)
    return snapshot, person


_SIGNED = (
    *("id", "head", "left", "right", "sampler", "score", "fallback", "version"),
    *("puid", "own", "until"),
)


def _sign(secret: bytes, snapshot: Snapshot, row: Any, puid: str, own: str, clock: float) -> str:
    values = {**row._mapping, "puid": puid, "own": own, "until": clock + 3600 * _HOURS}
    values["sampler"] = _shown_sampler(snapshot, row)
    text = json.dumps([values[name] for name in _SIGNED]).encode()
    seal = hmac.digest(secret, _label(snapshot) + text, "sha256")[:16]
    return urlsafe_b64encode(seal + text).decode().rstrip("=")


def _read(
    secret: bytes, snapshot: Snapshot, signed: str | None, clock: float
) -> dict[str, Any] | None:
    """Return the query that this server signed, or None."""
    try:
        data = urlsafe_b64decode((signed or "") + "=" * (-len(signed or "") % 4))
    except ValueError:
        return None
    seal, text = data[:16], data[16:]
    if not hmac.compare_digest(seal, hmac.digest(secret, _label(snapshot) + text, "sha256")[:16]):
        return None
    found = dict(zip(_SIGNED, json.loads(text), strict=True))
    if not clock - 60 <= found["until"] <= clock + 3600 * _HOURS + 60:
        return None
    return found


def _label(snapshot: Snapshot) -> bytes:
    return f"salmon 2 {snapshot.frame.id} {snapshot.frame.created} ".encode()


def _shown_sampler(snapshot: Snapshot, row: Any) -> str:
    """Return the sampler's name; attention checks look like queries of the first sampler."""
    name: str = row.sampler
    return name if row.kind == "query" else next(iter(snapshot.frame.settings.samplers))


def _cookie(snapshot: Snapshot) -> str:
    return f"accelerando_query_{snapshot.frame.name}"


def _find(connection: Connection, name: str | None) -> Snapshot:
    """Return the experiment, if it asks for Salmon's addresses."""
    names = [name] if name is not None else stored.names(connection)
    for one in names:
        snapshot = stored.find(connection, one)
        if snapshot.frame.settings.salmon_routes:
            return snapshot
    raise ApiError(
        "no_salmon", "No experiment here uses Salmon's addresses (salmon_routes: true).", 404
    )


def _person(
    connection: Connection,
    snapshot: Snapshot,
    secret: bytes,
    puid: str,
    request: Request,
    clock: float,
    own: str = "",
) -> Person:
    """Return the participant of the cookie, or a new one with this name."""
    shown = cookie_of(request, cookie_name(snapshot.frame.name))
    known = participants.authenticate(connection, secret, snapshot, shown)
    made = participants.join(
        connection, snapshot, secret, _named(snapshot, puid), "", known, clock, own=own
    )
    return participants.get(connection, snapshot, made.id, lock=True)


def _named(snapshot: Snapshot, puid: str) -> dict[str, str]:
    """Return the parameters of a link with this id."""
    parameter = next(iter(snapshot.frame.settings.participants.id_parameters), "puid")
    return {parameter: puid} if puid else {}


def _require_open(snapshot: Snapshot, person: Person) -> None:
    if snapshot.paused:
        raise ApiError("paused", "The experiment is paused.", 409)
    if session.needs_consent(snapshot, person):
        raise ApiError("consent_required", "This experiment asks for consent first.", 409)
    if person.state == "blocked" or person.outcome is not None:
        raise ApiError("finished", "This session has ended.", 409)
