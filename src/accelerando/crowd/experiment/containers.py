"""Containers of videos and sounds: whether a file holds what its type says, by its headers.

Nothing is decoded. A file that is cut off, or has no picture track, would be a blank box on every
participant's page.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["flaw_of"]

_WHOLE = "it is cut off or damaged"


def flaw_of(data: bytes, kind: str) -> str | None:
    r"""Return why a video or sound cannot be played, by its headers; None if nothing is wrong.

    Parameters
    ----------
    data : bytes
    kind : str
        MIME type by the first bytes.

    Examples
    --------
    >>> flaw_of(b"RIFF\\x04\\0\\0\\0WAVE", "audio/wav")
    'it has no sound in it'
    """
    if kind in ("video/mp4", "video/quicktime", "audio/mp4"):
        return _mp4(data, kind)
    check = {
        "video/webm": _webm,
        "video/ogg": _ogg,
        "audio/ogg": _ogg,
        "audio/mpeg": _mp3,
        "audio/wav": _wav,
        "audio/flac": _flac,
    }.get(kind)
    return None if check is None else check(data)


def _boxes(data: bytes, place: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, begin and end of the content of boxes; the end may lie behind the data's."""
    while place + 8 <= end:
        size, name, head = (
            int.from_bytes(data[place : place + 4], "big"),
            data[place + 4 : place + 8],
            8,
        )
        if size == 1:
            size, head = int.from_bytes(data[place + 8 : place + 16], "big"), 16
        elif size == 0:
            size = end - place
        if size < head:
            return
        yield name, place + head, place + size
        place += size


def _mp4(data: bytes, kind: str) -> str | None:
    top = {name: (begin, end) for name, begin, end in _boxes(data, 0, len(data))}
    if b"moov" not in top or not {b"mdat", b"moof"} & set(top):
        return "it is cut off or damaged: its table of contents or its content is missing"
    if max(end for _, end in top.values()) > len(data):
        return _WHOLE
    begin, end = top[b"moov"]
    # Inside moov: trak > mdia > hdlr, with the kind of the track at its ninth byte.
    handlers = {
        data[place + 8 : place + 12]
        for trak, first, last in _boxes(data, begin, end)
        if trak == b"trak"
        for mdia, inner, after in _boxes(data, first, min(last, end))
        if mdia == b"mdia"
        for hdlr, place, _ in _boxes(data, inner, min(after, end))
        if hdlr == b"hdlr"
    }
    if kind == "audio/mp4":
        return None if b"soun" in handlers else "it has no sound in it"
    if b"vide" in handlers:
        return None
    if b"soun" in handlers:
        return "it has a sound and no picture; save sounds as M4A, MP3, OGG, WAV or FLAC"
    return "it has no pictures in it"


def _webm(data: bytes) -> str | None:
    if data.find(b"\x18\x53\x80\x67") < 0 or data.find(b"\x1f\x43\xb6\x75") < 0:
        return f"{_WHOLE}: it has no content"
    if data.find(b"V_") < 0:
        return "it has no pictures in it"
    return None


def _ogg(data: bytes) -> str | None:
    pages = place = 0
    while data[place : place + 4] == b"OggS" and place + 27 <= len(data):
        table = data[place + 27 : place + 27 + data[place + 26]]
        place += 27 + len(table) + sum(table)
        pages += 1
    if place > len(data):
        return _WHOLE
    return None if pages > 2 else "it has no content"


def _mp3(data: bytes) -> str | None:
    place = 0
    if data[:3] == b"ID3":
        size = 0
        for byte in data[6:10]:
            size = size << 7 | byte & 0x7F
        place = 10 + size
    while place < len(data) and data[place] == 0:
        place += 1
    frame = data[place : place + 4]
    if len(frame) < 4 or frame[0] != 0xFF or frame[1] & 0xE0 != 0xE0 or len(data) - place < 100:
        return "it has no sound in it"
    return None


def _wav(data: bytes) -> str | None:
    place, known = 12, set()
    while place + 8 <= len(data):
        name, size = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        left = len(data) - place - 8
        if name == b"data":
            # Recorders that stream leave 0 or the largest number in place of the size.
            if left == 0 or (size == 0 and left < 8):
                return "it has no sound in it"
            if size > left and size < 0x7FFFFFFF:
                return _WHOLE
            return None if b"fmt " in known else f"{_WHOLE}: its header is missing"
        known.add(name)
        place += 8 + size + size % 2
    return "it has no sound in it"


def _flac(data: bytes) -> str | None:
    place, last = 4, False
    while not last and place + 4 <= len(data):
        last = bool(data[place] & 0x80)
        place += 4 + int.from_bytes(data[place + 1 : place + 4], "big")
    return None if last and len(data) > place + 2 else "it has no sound in it"
