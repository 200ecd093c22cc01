"""Route of images, videos and sounds."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response, StreamingResponse
from sqlalchemy import Connection

from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.web.context import Ctx
from accelerando.crowd.web.participant_api import Name

__all__ = ["router"]

router = APIRouter(tags=["media"])

Key = Annotated[str, Path(pattern=r"^[0-9a-f]{64}\.[a-z0-9]{2,4}$")]
_PIECE = 256 * 1024
# An SVG opened by itself is a page of this server: the sandbox removes all its rights.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"


@router.get("/media/{name}/{key}", response_class=Response, summary="An image, video or sound")
async def media(request: Request, name: Name, key: Key, context: Ctx) -> Response:
    """Return a file, or a range of its bytes, in pieces from the database.

    A browser keeps it for some minutes and then asks whether it is still there, because a deleted
    experiment must be gone.
    """

    def look(connection: Connection) -> tuple[int, int, str] | None:
        number = stored.find(connection, name).frame.id
        found = stored.media_size(connection, number, key)
        return None if found is None else (number, *found)

    found = await context.read(look)
    if found is None:
        raise ApiError("unknown_media", "There is no such file.", 404)
    number, size, kind = found
    headers = {
        "cache-control": "private, max-age=300, must-revalidate",
        "content-security-policy": _POLICY,
        "accept-ranges": "bytes",
        "etag": f'"{key[:32]}"',
    }
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    wanted = _range(request.headers.get("range"), size)
    begin, end = (0, size) if wanted is None else wanted
    if wanted is not None and begin >= end:
        headers["content-range"] = f"bytes */{size}"
        return Response(status_code=416, headers=headers)
    if wanted is not None:
        headers["content-range"] = f"bytes {begin}-{end - 1}/{size}"
    headers["content-length"] = str(end - begin)
    status = 200 if wanted is None else 206
    if end - begin <= _PIECE:
        data = await context.read(stored.media_piece, number, key, begin, end - begin)
        return Response(data, status, media_type=kind, headers=headers)

    async def pieces() -> AsyncIterator[bytes]:
        for place in range(begin, end, _PIECE):
            count = min(_PIECE, end - place)
            data = await context.read(stored.media_piece, number, key, place, count)
            if len(data) < count:  # deleted meanwhile
                return
            yield data

    return StreamingResponse(pieces(), status, media_type=kind, headers=headers)


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return begin and end of a range of bytes, which browsers request for videos."""
    found = re.fullmatch(r"bytes=([0-9]{0,15})-([0-9]{0,15})", header or "")
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        return max(0, size - int(found[2])), size
    end = int(found[2]) + 1 if found[2] else size
    return int(found[1]), min(end, size)
