"""HTTP interface of recruiting: links for participants, and their completion codes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from accelerando.crowd.store import codes, recruiting
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.web.auth import Experimenter, write_as
from accelerando.crowd.web.context import Ctx
from accelerando.crowd.web.participant_api import Name
from accelerando.crowd.web.schemas import ErrorOut

__all__ = ["router"]

_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorOut} for code in (400, 401, 403, 404, 413, 422, 503)
}
router = APIRouter(tags=["experimenter"], responses=_REFUSALS)


class Links(BaseModel):
    """IDs of participants who get personal links."""

    ids: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(max_length=10_000)


@router.post("/api/v1/experiments/{name}/links", summary="Links for recruiting")
async def links(
    request: Request, name: Name, body: Links, context: Ctx, who: Experimenter
) -> dict[str, Any]:
    """Return unguessable links for recruiting services, and a personal link for each id."""
    clock = context.clock()
    root: str = request.scope.get("root_path", "")

    def make(connection: Connection) -> dict[str, Any]:
        snapshot = stored.find(connection, name)
        stored.note(connection, clock, who.name, "make links", f"{name} ({len(body.ids)})")
        return recruiting.links(context.secret, snapshot, f"{root}/e/{name}/", body.ids)

    return await write_as(who, context, make)


class Codes(BaseModel):
    """Completion codes that people have sent, and whether to use them up."""

    codes: list[Annotated[str, Field(max_length=1000)]] = Field(max_length=10_000)
    use: bool = False


@router.post("/api/v1/experiments/{name}/codes", summary="Check completion codes")
async def check_codes(
    name: Name, body: Codes, context: Ctx, who: Experimenter
) -> dict[str, list[dict[str, Any]]]:
    """Return whose codes these are. With ``use``, each valid one is valid for the last time."""
    clock = context.clock()

    def check(connection: Connection) -> list[dict[str, Any]]:
        snapshot = stored.find(connection, name)
        return codes.check_codes(
            *(connection, context.secret, snapshot, body.codes, clock), use=body.use, who=who.name
        )

    return {"codes": await write_as(who, context, check)}
