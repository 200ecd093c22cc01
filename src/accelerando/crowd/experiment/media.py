"""Media: images, videos and sounds, recognized by their content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Media", "MediaKind", "recognize"]

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
    """

    name: str
    type: str
    data: bytes = field(repr=False)

    @property
    def kind(self) -> MediaKind:
        """The first part of the MIME type: "image", "video" or "audio"."""
        return self.type.partition("/")[0]  # type: ignore[return-value]

    @property
    def key(self) -> str:
        """Hash of the content with a suffix, for URLs."""
        return f"{hashlib.sha256(self.data).hexdigest()}{_SUFFIX[self.type]}"


_SUFFIX = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/bmp": ".bmp",
    "image/avif": ".avif",
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
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"ID3", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
]
_BRANDS = {b"avif": "image/avif", b"avis": "image/avif", b"qt  ": "video/quicktime"}


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
        return _BRANDS.get(brand, "audio/mp4" if brand.startswith(b"M4A") else "video/mp4")
    # MP3 without a tag: eleven bits set, then a valid layer and bit rate.
    if len(data) > 3 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2 and data[2] & 0xF0 != 0xF0:
        return "audio/mpeg"
    return "image/svg+xml" if _is_svg(data) else None


def _is_svg(data: bytes) -> bool:
    try:
        head = data[:4096].decode("utf-8-sig", errors="ignore").lstrip()
    except ValueError:
        return False
    while head.startswith(("<?xml", "<!--", "<!DOCTYPE svg")):
        end = {"<?": "?>", "<!": "-->" if head.startswith("<!--") else ">"}[head[:2]]
        head = head.partition(end)[2].lstrip()
    return head.startswith("<svg") and head[4:5] in " \t\r\n>/"
