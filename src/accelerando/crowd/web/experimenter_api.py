"""HTTP interface of experimenters."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, File, Form, Path, Request, UploadFile
from fastapi.responses import JSONResponse, Response
from sqlalchemy import Connection

from accelerando.crowd.experiment import Experiment, Files, make_experiment, read_upload, read_yaml
from accelerando.crowd.experiment.problems import SettingsError, SettingsProblem
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store import participants, people, published, statistics
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.tally import Tallies
from accelerando.crowd.web import accounts, roles
from accelerando.crowd.web.auth import (
    COOKIE,
    Experimenter,
    forget,
    set_session,
    signed_in,
    try_password,
    write_as,
)
from accelerando.crowd.web.context import Context, Ctx
from accelerando.crowd.web.cookies import cookie_of
from accelerando.crowd.web.experimenter_schemas import (
    Confirm,
    Created,
    SessionInfo,
    SignIn,
    Summary,
)
from accelerando.crowd.web.origin import require_same_origin
from accelerando.crowd.web.participant_api import Name
from accelerando.crowd.web.schemas import ErrorOut, item_json
from accelerando.crowd.web.signed import Signed

__all__ = ["Summary", "require_name", "router"]

_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorOut} for code in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}
router = APIRouter(tags=["experimenter"], responses=_REFUSALS)
PersonId = Annotated[int, Path(ge=1, lt=2**53)]


# -- session --------------------------------------------------------------------------------------


@router.post("/api/v1/session", response_model=SessionInfo, summary="Sign in")
async def sign_in(request: Request, body: SignIn, context: Ctx) -> JSONResponse:
    """Set the session cookie. After eight wrong passwords sign-in is blocked for five minutes."""
    require_same_origin(request)
    token = await try_password(request, body.name, body.password, body.code)
    signed = await context.read(accounts.check_session, token, context.clock())
    assert signed is not None
    response = _session_json(signed)
    set_session(request, response, token)
    return response


@router.get("/api/v1/session", response_model=SessionInfo, summary="Who is signed in")
async def session(request: Request) -> JSONResponse:
    """Return the name of the experimenter, and the CSRF token that writes need."""
    signed = await signed_in(request)
    if signed is None:
        raise ApiError("sign_in", "Please sign in.", 401)
    return _session_json(signed)


@router.delete("/api/v1/session", status_code=204, summary="Sign out")
async def sign_out(request: Request, context: Ctx, who: Experimenter) -> Response:
    """End the session on the server and delete its cookie."""
    del who
    await context.write(accounts.sign_out, cookie_of(request, COOKIE) or "")
    response = Response(status_code=204)
    forget(request, response)
    return response


def _session_json(signed: Signed) -> JSONResponse:
    return JSONResponse(
        {
            "experimenter": signed.name,
            "csrf": signed.csrf,
            "must_change_password": signed.must_change,
        }
    )


# -- experiments ----------------------------------------------------------------------------------


@router.get("/api/v1/experiments", summary="All experiments")
async def all_experiments(
    request: Request, context: Ctx, who: Experimenter
) -> dict[str, list[Summary]]:
    """Return all experiments, oldest first."""
    only = await context.read(roles.visible, who)
    found = await context.read(statistics.summaries, _root(request), only)
    return {"experiments": [Summary(**one) for one in found]}


@router.post("/api/v1/experiments", status_code=201, summary="Create an experiment")
async def create(
    request: Request,
    context: Ctx,
    who: Experimenter,
    settings: Annotated[UploadFile, File(description="experiment.yaml, or Salmon's init.yaml")],
    items: Annotated[list[UploadFile], File(description="ZIP, CSV, images, videos, sounds")] = [],  # noqa: B006
    name: Annotated[str, Form(max_length=63)] = "",
) -> Created:
    """Create an experiment, or report all problems of its files with their lines."""
    text = await settings.read(4_000_000)
    uploads = [(item.filename or "file", await item.read()) for item in items]

    def make() -> Experiment:
        files = Files()
        for filename, data in uploads:
            files.merge(read_upload(filename, data, context.limits))
        document = read_yaml(text, settings.filename or "experiment.yaml")
        return make_experiment(document, files, context.limits)

    made = await anyio.to_thread.run_sync(make)
    chosen = name or made.settings.name
    require_name(chosen)
    clock = context.clock()

    def store(connection: Connection) -> None:
        stored.add(connection, made, clock, chosen)
        roles.give(connection, chosen, who.name, "owner")
        stored.note(connection, clock, who.name, "create", chosen)

    await write_as(who, context, store)
    found = await context.read(statistics.summary, chosen, _root(request))
    return Created(**found, notices=made.notices)


@router.get("/api/v1/experiments/{name}", summary="One experiment")
async def one(request: Request, name: Name, context: Ctx, who: Experimenter) -> Summary:
    """Return a summary of the experiment."""
    del who
    return Summary(**await context.read(statistics.summary, name, _root(request)))


@router.post("/api/v1/experiments/{name}/pause", summary="Pause")
async def pause(request: Request, name: Name, context: Ctx, who: Experimenter) -> Summary:
    """Pause the experiment: no new queries, but answers to open ones are stored."""
    return await _set_state(request, name, context, who, "paused")


@router.post("/api/v1/experiments/{name}/resume", summary="Resume")
async def resume(request: Request, name: Name, context: Ctx, who: Experimenter) -> Summary:
    """Resume the experiment. Participants' pages continue automatically."""
    return await _set_state(request, name, context, who, "running")


async def _set_state(
    request: Request, name: str, context: Context, who: Signed, state: str
) -> Summary:
    clock = context.clock()

    def change(connection: Connection) -> None:
        snapshot = stored.find(connection, name)
        stored.set_state(connection, snapshot.frame.id, state)
        stored.note(connection, clock, who.name, state, name)

    await write_as(who, context, change)
    return Summary(**await context.read(statistics.summary, name, _root(request)))


@router.delete("/api/v1/experiments/{name}", status_code=204, summary="Delete")
async def delete(name: Name, body: Confirm, context: Ctx, who: Experimenter) -> Response:
    """Delete the experiment and all its data. ``confirm`` must be its name."""
    clock = context.clock()

    def remove(connection: Connection) -> None:
        snapshot = stored.find(connection, name)
        if body.confirm != name:
            raise ApiError("confirm", f"To delete it, confirm with its name, {name!r}.", 422)
        stored.remove(connection, snapshot.frame.id)
        stored.note(connection, clock, who.name, "delete", name)

    await write_as(who, context, remove)
    return Response(status_code=204)


# -- monitoring ------------------------------------------------------------------------------------


@router.get("/api/v1/experiments/{name}/dashboard", summary="Data of the dashboard")
async def dashboard(
    request: Request, name: Name, context: Ctx, who: Experimenter
) -> dict[str, Any]:
    """Return the data of the dashboard, computed at most once a second."""
    del who
    kept: dict[Any, tuple[float, dict[str, Any]]] = context.cache.setdefault("dashboards", {})
    begin = time.monotonic()
    # Looked up each time: a deleted experiment is gone at once, and so are withdrawn answers.
    snapshot = await context.read(stored.find, name)
    key = snapshot.frame.id, snapshot.frame.created, snapshot.revision
    if key in kept and kept[key][0] > begin:
        return kept[key][1]
    for old in [old for old, (until, _) in kept.items() if until < begin]:
        del kept[old]
    clock = context.clock()
    tallies = context.cache.setdefault("tallies", Tallies())
    found = await context.read(statistics.dashboard, name, _root(request), clock, tallies)

    def labels(connection: Connection) -> list[str]:
        return [item.text for item in context.items(connection, stored.find(connection, name))]

    found["items"]["names"] = await context.read(labels)
    spent = time.monotonic() - begin
    kept[key] = begin + spent + min(max(0.9, 10 * spent), 30.0), found
    return found


@router.get("/api/v1/experiments/{name}/embedding", summary="The newest positions")
async def embedding(
    request: Request, name: Name, context: Ctx, who: Experimenter
) -> dict[str, Any]:
    """Return the newest embedding, or 404 with code ``no_embedding`` before the first."""
    del who
    snapshot, row = await context.read(statistics.embedding, name)
    if row is None:
        raise ApiError("no_embedding", "There are too few answers for an embedding yet.", 404)

    def look(connection: Connection) -> tuple[list[Any], dict[str, Any]]:
        return context.items(connection, snapshot), published.report(connection, snapshot.frame.id)

    root, (items, facts) = _root(request), await context.read(look)
    return {
        "version": row.version,
        "answers": row.n_answers,
        "at": row.at,
        "positions": row.positions,
        **{key: facts.get(key) for key in ("uncertainty", "model", "reason", "guard")},
        "items": [item_json(item, k, snapshot.frame, root) for k, item in enumerate(items)],
    }


@router.get("/api/v1/experiments/{name}/participants", summary="Participants and their attention")
async def all_participants(name: Name, context: Ctx, who: Experimenter) -> JSONResponse:
    """Return all participants, newest first."""
    del who
    kept: people.People = context.cache.setdefault("people", people.People())

    def look(connection: Connection) -> list[dict[str, Any]]:
        snapshot = stored.find(connection, name)
        return people.with_reliability(connection, snapshot, kept.look(connection, snapshot))

    return JSONResponse({"participants": await context.read(look)})


@router.post("/api/v1/experiments/{name}/participants/{person}/block", summary="Block")
async def block(name: Name, person: PersonId, context: Ctx, who: Experimenter) -> dict[str, Any]:
    """Block a participant: no more queries, and the fit ignores their answers."""
    return await _set_blocked(name, person, context, who, True)


@router.post("/api/v1/experiments/{name}/participants/{person}/unblock", summary="Unblock")
async def unblock(name: Name, person: PersonId, context: Ctx, who: Experimenter) -> dict[str, Any]:
    """Unblock a participant."""
    return await _set_blocked(name, person, context, who, False)


async def _set_blocked(
    name: str, person: int, context: Context, who: Signed, blocked: bool
) -> dict[str, Any]:
    clock = context.clock()

    def change(connection: Connection) -> dict[str, Any]:
        snapshot = _find_person(connection, name, person)
        participants.set_blocked(connection, snapshot, person, blocked)
        action = "block" if blocked else "unblock"
        stored.note(connection, clock, who.name, action, f"{name} participant {person}")
        return next(people.qualities(connection, snapshot, person))

    return await write_as(who, context, change)


@router.post("/api/v1/experiments/{name}/participants/{person}/reinstate", summary="Reinstate")
async def reinstate(
    name: Name, person: PersonId, context: Ctx, who: Experimenter
) -> dict[str, Any]:
    """Undo a withdrawal before its answers are deleted, at the wish of the participant."""
    clock = context.clock()

    def change(connection: Connection) -> dict[str, Any]:
        snapshot = _find_person(connection, name, person)
        row = participants.get(connection, snapshot, person)
        participants.reinstate(connection, snapshot, row)
        stored.note(connection, clock, who.name, "reinstate", f"{name} participant {person}")
        return next(people.qualities(connection, snapshot, person))

    return await write_as(who, context, change)


@router.delete(
    "/api/v1/experiments/{name}/participants/{person}", status_code=204, summary="Delete a person"
)
async def delete_person(name: Name, person: PersonId, context: Ctx, who: Experimenter) -> Response:
    """Delete a participant and all their answers."""
    clock = context.clock()

    def remove(connection: Connection) -> None:
        snapshot = _find_person(connection, name, person)
        participants.remove(connection, snapshot, person)
        subject = f"{name} participant {person}"
        stored.note(connection, clock, who.name, "delete participant", subject)

    await write_as(who, context, remove)
    return Response(status_code=204)


def _find_person(connection: Connection, name: str, person: int) -> Snapshot:
    snapshot = stored.find(connection, name)
    try:
        participants.get(connection, snapshot, person, lock=True)
    except ApiError:
        raise ApiError("unknown_participant", "There is no such participant.", 404) from None
    return snapshot


def _root(request: Request) -> str:
    root: str = request.scope.get("root_path", "")
    return root


def require_name(name: str) -> None:
    """Raise SettingsError unless the name can be part of a URL."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,62}", name):
        raise SettingsError(
            [
                SettingsProblem(
                    f"{name!r} cannot be part of a link.",
                    "Use small letters, digits, - and _.",
                    key="name",
                )
            ]
        )
