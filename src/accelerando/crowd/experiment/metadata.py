"""Metadata in pictures: where a photo was taken, with which camera, by whom.

Files whose pixels browsers show as they are keep them bit by bit: only the parts with metadata are
left out, and everything after the end of the picture. Color profiles stay.
"""

from __future__ import annotations

__all__ = ["without_metadata"]

_PNG_PARTS = {
    *(b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"cHRM", b"gAMA", b"iCCP", b"sBIT", b"sRGB"),
    *(b"cICP", b"mDCV", b"cLLI", b"bKGD", b"pHYs", b"acTL", b"fcTL", b"fdAT"),
}
_WEBP_PARTS = {b"VP8X", b"VP8 ", b"VP8L", b"ICCP", b"ANIM", b"ANMF", b"ALPH"}
_GIF_EXTENSIONS = (b"NETSCAPE2.0", b"ANIMEXTS1.0")


def without_metadata(data: bytes, kind: str) -> bytes:
    r"""Return a picture that decoders accepted without its metadata.

    Parameters
    ----------
    data : bytes
    kind : str
        MIME type of the picture. Types other than JPEG, PNG, WebP and GIF are returned unchanged.

    Examples
    --------
    >>> without_metadata(b"GIF89a" + bytes(7) + b"!\xfe\x02hi\x00;", "image/gif")[13:]
    b';'
    """
    part = {
        "image/jpeg": _jpeg,
        "image/png": _png,
        "image/webp": _webp,
        "image/gif": _gif,
    }.get(kind)
    return data if part is None else part(data)


def _jpeg(data: bytes) -> bytes:
    kept, place = [data[:2]], 2
    while place + 4 <= len(data):
        marker = data[place + 1]
        if data[place] != 0xFF:
            break
        if marker == 0xFF:  # a fill byte
            place += 1
            continue
        if marker == 0xD9:
            return b"".join([*kept, b"\xff\xd9"])
        size = 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        segment = data[place : place + size]
        place += size
        if _keeps(marker, segment):
            kept.append(segment)
        if marker == 0xDA:  # the scan follows, up to the next marker that is not part of it
            end = _scan_end(data, place)
            kept.append(data[place:end])
            place = end
    # Without an end marker the rest belongs to the last scan, or is damaged in a way that decoders
    # forgive.
    return b"".join([*kept, b"\xff\xd9"])


def _keeps(marker: int, segment: bytes) -> bool:
    if marker == 0xE2:
        return segment[4:16] == b"ICC_PROFILE\0"
    # JFIF and Adobe's color transform; all else among applications' segments is metadata.
    return marker in (0xE0, 0xEE) or not (0xE0 <= marker <= 0xEF or marker == 0xFE)


def _scan_end(data: bytes, place: int) -> int:
    while True:
        place = data.find(b"\xff", place)
        if place < 0 or place + 1 >= len(data):
            return len(data)
        after = data[place + 1]
        if after != 0 and not 0xD0 <= after <= 0xD7:
            return place
        place += 2


def _png(data: bytes) -> bytes:
    kept, place = [data[:8]], 8
    while place + 12 <= len(data):
        end = place + 12 + int.from_bytes(data[place : place + 4], "big")
        name = data[place + 4 : place + 8]
        if name in _PNG_PARTS:
            kept.append(data[place:end])
        place = end
        if name == b"IEND":
            break
    return b"".join(kept)


def _webp(data: bytes) -> bytes:
    kept, place = [], 12
    end = min(len(data), 8 + int.from_bytes(data[4:8], "little"))
    while place + 8 <= end:
        size = int.from_bytes(data[place + 4 : place + 8], "little")
        after = place + 8 + size + size % 2
        part, name = data[place:after], data[place : place + 4]
        if name == b"VP8X":  # its flags announce Exif and XMP
            part = part[:8] + bytes([part[8] & ~0x0C]) + part[9:]
        if name in _WEBP_PARTS:
            kept.append(part)
        place = after
    body = b"WEBP" + b"".join(kept)
    return b"RIFF" + len(body).to_bytes(4, "little") + body


def _gif(data: bytes) -> bytes:
    place = 13 + _colors(data[10])
    kept = [data[:place]]
    while place < len(data):
        begin, kind = place, data[place]
        if kind == 0x2C:
            flags = data[place + 9] if place + 9 < len(data) else 0
            place = _blocks_end(data, place + 11 + _colors(flags))
            kept.append(data[begin:place])
        elif kind == 0x21:
            place = _blocks_end(data, place + 2)
            comment = data[begin + 1 : begin + 2] == b"\xfe"
            other = data[begin + 1 : begin + 2] == b"\xff" and (
                data[begin + 3 : begin + 14] not in _GIF_EXTENSIONS
            )
            if not comment and not other:
                kept.append(data[begin:place])
        else:
            break
    return b"".join([*kept, b";"])


def _colors(flags: int) -> int:
    """Return the number of bytes of a table of colors."""
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


def _blocks_end(data: bytes, place: int) -> int:
    while place < len(data) and data[place] != 0:
        place += data[place] + 1
    return min(place + 1, len(data))
