"""Route of images, videos and sounds."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response, StreamingResponse
from sqlalchemy import Connection

from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store import media as files
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.web.context import Context, Ctx
from accelerando.crowd.web.participant_api import Name

__all__ = ["router"]

router = APIRouter(tags=["media"])

Key = Annotated[str, Path(pattern=r"^[0-9a-f]{64}\.[a-z0-9]{2,4}$")]
Width = Annotated[
    int | None, Query(ge=1, le=20_000, description="One of the item's `widths`: a smaller copy.")
]
_PIECE = 256 * 1024
# An SVG opened by itself is a page of this server: the sandbox removes all its rights.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"

_HEADERS = {
    "cache-control": "private, max-age=300, must-revalidate",
    "content-security-policy": _POLICY,
}


@router.get("/media/{name}/{key}", response_class=Response, summary="An image, video or sound")
async def media(
    request: Request, name: Name, key: Key, context: Ctx, width: Width = None
) -> Response:
    """Return a file, or a range of its bytes, in pieces from the database, or a smaller copy.

    A browser keeps it for some minutes and then asks whether it is still there, because a deleted
    experiment must be gone.
    """
    if width is not None:
        return await _copy(request, name, key, width, context)

    def look(connection: Connection) -> tuple[int, int, str] | None:
        number = stored.find(connection, name).frame.id
        found = files.media_size(connection, number, key)
        return None if found is None else (number, *found)

    found = await context.read(look)
    if found is None:
        raise ApiError("unknown_media", "There is no such file.", 404)
    number, size, kind = found
    headers = {**_HEADERS, "accept-ranges": "bytes", "etag": f'"{key[:32]}"'}
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
        data = await context.read(files.media_piece, number, key, begin, end - begin)
        return Response(data, status, media_type=kind, headers=headers)

    async def pieces() -> AsyncIterator[bytes]:
        for place in range(begin, end, _PIECE):
            count = min(_PIECE, end - place)
            data = await context.read(files.media_piece, number, key, place, count)
            if len(data) < count:  # deleted meanwhile
                return
            yield data

    return StreamingResponse(pieces(), status, media_type=kind, headers=headers)


async def _copy(request: Request, name: str, key: str, width: int, context: Context) -> Response:
    """Return the smaller copy of an image with this width."""

    def look(connection: Connection) -> tuple[str, bytes] | None:
        return files.copy_of(connection, stored.find(connection, name).frame.id, key, width)

    found = await context.read(look)
    if found is None:
        raise ApiError("unknown_media", "There is no such file.", 404)
    headers = {**_HEADERS, "etag": f'"{key[:32]}-{width}"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(found[1], media_type=found[0], headers=headers)


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return begin and end of a range of bytes, which browsers request for videos."""
    found = re.fullmatch(r"bytes=([0-9]{0,15})-([0-9]{0,15})", header or "")
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        return max(0, size - int(found[2])), size
    end = int(found[2]) + 1 if found[2] else size
    return int(found[1]), min(end, size)
