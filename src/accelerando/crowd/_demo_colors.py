"""The colors of ``accelerando crowd demo``: a disc of equal lightness in CIELAB."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass

__all__ = ["Color", "color_disc", "png"]

_LIGHTNESS = 68.0
_RINGS = (("gray", 0.0, 1), ("pale", 17.0, 7), ("strong", 34.0, 16))
_WHITE = (0.9505, 1.0, 1.089)  # D65
# From XYZ to linear sRGB, IEC 61966-2-1.
_TO_RGB = (
    (3.2406, -1.5372, -0.4986),
    (-0.9689, 1.8758, 0.0415),
    (0.0557, -0.2040, 1.0570),
)


@dataclass(frozen=True)
class Color:
    """One item of the demo.

    Attributes
    ----------
    name : str
    position : tuple of two floats
        a* and b* of CIELAB, where equal distances are equal differences in perception.
    rgb : tuple of three ints
    """

    name: str
    position: tuple[float, float]
    rgb: tuple[int, int, int]


def color_disc() -> list[Color]:
    """Return rings of colors around gray, all equally light.

    Examples
    --------
    >>> colors = color_disc()
    >>> len(colors), colors[0].name, colors[8].name
    (24, 'gray', 'strong-000')
    """
    disc = []
    for ring, chroma, count in _RINGS:
        for k in range(count):
            angle = 2 * math.pi * k / count
            position = chroma * math.cos(angle), chroma * math.sin(angle)
            name = ring if count == 1 else f"{ring}-{round(math.degrees(angle)):03d}"
            disc.append(Color(name, position, _rgb(_LIGHTNESS, *position)))
    return disc


def png(rgb: tuple[int, int, int], size: int = 160) -> bytes:
    r"""Return a square of one color as a PNG file.

    Examples
    --------
    >>> png((255, 0, 0))[:8]
    b'\x89PNG\r\n\x1a\n'
    """

    def chunk(name: bytes, content: bytes) -> bytes:
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", size, size, 8, 3, 0, 0, 0)  # a palette, one byte per pixel
    rows = zlib.compress(bytes(size + 1) * size, 9)
    parts = ((b"IHDR", header), (b"PLTE", bytes(rgb)), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def _rgb(lightness: float, a: float, b: float) -> tuple[int, int, int]:
    """Convert CIELAB to sRGB (CIE 015:2018)."""
    y = (lightness + 16) / 116

    def back(value: float) -> float:
        return value**3 if value > 6 / 29 else 3 * (6 / 29) ** 2 * (value - 4 / 29)

    shares = (y + a / 500, y, y - b / 200)
    xyz = [white * back(value) for white, value in zip(_WHITE, shares, strict=True)]
    linear = [sum(m * c for m, c in zip(row, xyz, strict=True)) for row in _TO_RGB]
    red, green, blue = (round(255 * _gamma(min(1.0, max(0.0, light)))) for light in linear)
    return red, green, blue


def _gamma(light: float) -> float:
    return 12.92 * light if light <= 0.0031308 else 1.055 * light ** (1 / 2.4) - 0.055
