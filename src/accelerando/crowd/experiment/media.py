"""Media: images, videos and sounds, recognized by their content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

__all__ = ["Media", "MediaKind", "n_pixels", "recognize"]

MediaKind = Literal["image", "video", "audio"]


@dataclass(frozen=True)
class Media:
    """An image, video or sound.

    Attributes
    ----------
    name : str
        File name, which is shown and exported but never used as a path.
    type : str
        MIME type, derived from the content.
    data : bytes
    source : str
        Hash of the file that this was made from: a restart finds by it what was converted before.
    sizes : dict of int to (str, bytes)
        Smaller copies of an image: width in pixels to MIME type and content.
    """

    name: str
    type: str
    data: bytes = field(repr=False)
    source: str = ""
    sizes: dict[int, tuple[str, bytes]] = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> MediaKind:
        """The first part of the MIME type: "image", "video" or "audio"."""
        return self.type.partition("/")[0]  # type: ignore[return-value]

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def key(self) -> str:
        """Hash of the content with a suffix, for URLs."""
        return f"{self.hash}{_SUFFIX[self.type]}"


_SUFFIX = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/bmp": ".bmp",
    "image/avif": ".avif",
    "image/heic": ".heic",
    "image/tiff": ".tif",
    "image/svg+xml": ".svg",
    "video/mp4": ".mp4",
    "video/quicktime": ".mov",
    "video/webm": ".webm",
    "video/ogg": ".ogv",
    "audio/ogg": ".ogg",
    "audio/mpeg": ".mp3",
    "audio/wav": ".wav",
    "audio/flac": ".flac",
    "audio/mp4": ".m4a",
}

_FIRST_BYTES = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"ID3", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
]
_BRANDS = {
    b"avif": "image/avif",
    b"avis": "image/avif",
    b"qt  ": "video/quicktime",
} | dict.fromkeys(
    (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"heif", b"mif1", b"msf1"), "image/heic"
)


def recognize(data: bytes) -> str | None:
    """Return the MIME type of these bytes, or None if a page must not show them.

    Examples
    --------
    >>> recognize(b"GIF89a..."), recognize(b"<html><script>alert(1)</script>")
    ('image/gif', None)
    """
    for start, found in _FIRST_BYTES:
        if data.startswith(start):
            return found
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12])
    if data[:4] == b"OggS":
        return "video/ogg" if b"theora" in data[:200] else "audio/ogg"
    if data[4:8] == b"ftyp":
        brand = data[8:12]
        if brand in (b"mif1", b"msf1") and b"avif" in data[16 : int.from_bytes(data[:4], "big")]:
            return "image/avif"
        return _BRANDS.get(brand, "audio/mp4" if brand.startswith(b"M4A") else "video/mp4")
    # MP3 without a tag: eleven bits set, then a valid layer and bit rate.
    if len(data) > 3 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2 and data[2] & 0xF0 != 0xF0:
        return "audio/mpeg"
    return "image/svg+xml" if _is_svg(data) else None


def n_pixels(data: bytes, kind: str) -> int | None:
    """Return width times height from the header of an image; None if the header does not say.

    A few kilobytes may declare billions of pixels, which the browser of every participant would
    have to unpack.

    Examples
    --------
    >>> n_pixels(b"GIF89a" + bytes([4, 0, 3, 0]), "image/gif")
    12
    """
    sides: tuple[int, int] | None = None
    number = int.from_bytes
    if kind == "image/png":
        sides = number(data[16:20], "big"), number(data[20:24], "big")
    elif kind == "image/gif":
        sides = number(data[6:8], "little"), number(data[8:10], "little")
    elif kind == "image/bmp":
        width = number(data[18:22], "little", signed=True)
        sides = abs(width), abs(number(data[22:26], "little", signed=True))
    elif kind == "image/webp":
        sides = _webp(data)
    elif kind == "image/jpeg":
        sides = _jpeg(data)
    return None if sides is None else sides[0] * sides[1]


def _webp(data: bytes) -> tuple[int, int] | None:
    if data[12:16] == b"VP8X":
        width = int.from_bytes(data[24:27], "little") + 1
        return width, int.from_bytes(data[27:30], "little") + 1
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if data[12:16] == b"VP8 ":
        width = int.from_bytes(data[26:28], "little") & 0x3FFF
        return width, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    place = 2
    while place + 9 < len(data) and data[place] == 0xFF:
        marker, size = data[place + 1], int.from_bytes(data[place + 2 : place + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height = int.from_bytes(data[place + 5 : place + 7], "big")
            return int.from_bytes(data[place + 7 : place + 9], "big"), height
        place += 2 + size
    return None


def _is_svg(data: bytes) -> bool:
    try:
        head = data[:4096].decode("utf-8-sig", errors="ignore").lstrip()
    except ValueError:
        return False
    while head.startswith(("<?xml", "<!--", "<!DOCTYPE svg")):
        end = {"<?": "?>", "<!": "-->" if head.startswith("<!--") else ">"}[head[:2]]
        head = head.partition(end)[2].lstrip()
    return head.startswith("<svg") and head[4:5] in " \t\r\n>/"
