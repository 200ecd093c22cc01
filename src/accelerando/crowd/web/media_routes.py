"""Route of images, videos and sounds."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from sqlalchemy import Connection

from accelerando.crowd.experiment import Media
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.web.context import Ctx
from accelerando.crowd.web.participant_api import Name

__all__ = ["router"]

router = APIRouter(tags=["media"])

Key = Annotated[str, Path(pattern=r"^[0-9a-f]{64}\.[a-z0-9]{2,4}$")]
_CACHE_BYTES = 64 * 2**20
# An SVG opened by itself is a page of this server: the sandbox removes all its rights.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"


class MediaCache:
    """An LRU cache of media with a limit in bytes."""

    def __init__(self, most: int = _CACHE_BYTES) -> None:
        self._most, self._size = most, 0
        self._files: OrderedDict[tuple[str, str], Media] = OrderedDict()

    def get(self, key: tuple[str, str]) -> Media | None:
        """Return a file, or None if it is not in the cache."""
        found = self._files.get(key)
        if found is not None:
            self._files.move_to_end(key)
        return found

    def put(self, key: tuple[str, str], media: Media) -> None:
        """Add a file and evict the least recently used ones."""
        if key in self._files or len(media.data) > self._most // 4:
            return
        self._files[key] = media
        self._size += len(media.data)
        while self._size > self._most:
            _, old = self._files.popitem(last=False)
            self._size -= len(old.data)


@router.get("/media/{name}/{key}", response_class=Response, summary="An image, video or sound")
async def media(request: Request, name: Name, key: Key, context: Ctx) -> Response:
    """Return a file. Its URL contains its hash, so browsers may cache it forever."""
    media_cache: MediaCache = context.cache.setdefault("media", MediaCache())
    found = media_cache.get((name, key))
    if found is None:

        def look(connection: Connection) -> Media | None:
            return stored.media_of(connection, stored.find(connection, name).frame.id, key)

        found = await context.read(look)
        if found is None:
            raise ApiError("unknown_media", "There is no such file.", 404)
        media_cache.put((name, key), found)
    headers = {
        "cache-control": "public, max-age=31536000, immutable",
        "content-security-policy": _POLICY,
        "accept-ranges": "bytes",
        "etag": f'"{key[:32]}"',
    }
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    wanted = _range(request.headers.get("range"), len(found.data))
    if wanted is None:
        return Response(found.data, media_type=found.type, headers=headers)
    begin, end = wanted
    if begin >= end:
        headers["content-range"] = f"bytes */{len(found.data)}"
        return Response(status_code=416, headers=headers)
    headers["content-range"] = f"bytes {begin}-{end - 1}/{len(found.data)}"
    return Response(found.data[begin:end], 206, media_type=found.type, headers=headers)


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return begin and end of a range of bytes, which browsers request for videos."""
    found = re.fullmatch(r"bytes=([0-9]{0,15})-([0-9]{0,15})", header or "")
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        return max(0, size - int(found[2])), size
    end = int(found[2]) + 1 if found[2] else size
    return int(found[1]), min(end, size)
