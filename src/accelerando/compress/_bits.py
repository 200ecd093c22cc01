"""Bit packing: pack small integers into bits with vectorized NumPy operations."""

from __future__ import annotations

import numpy as np

from accelerando.compress._payload import Reader

_TRITS = 5  # a byte holds 3⁵ = 243 values: 1.6 bits per trit instead of 2
_POWERS = np.array([1, 3, 9, 27, 81], dtype=np.uint8)
_TRIT_TABLE = (np.arange(256)[:, None] // _POWERS % 3).astype(np.uint8)


def widths(bits: int) -> list[int]:
    """Split a width into parts of 8, 4, 2 and 1 bits, each of which fits into a byte evenly.

    >>> widths(7)
    [4, 2, 1]
    """
    return [part for part in (8, 4, 2, 1) if bits & part]


def pack(numbers: np.ndarray, bits: int) -> bytes:
    """Pack uint8 numbers below 2^bits into as few bytes as possible.

    >>> pack(np.array([1, 2, 3, 0], dtype=np.uint8), 2).hex()
    '39'
    """
    parts = []
    for part in widths(bits):
        low = numbers if bits == part == 8 else numbers & ((1 << part) - 1)
        parts.append(_pack_part(low, part))
        numbers = numbers >> part if part < 8 else numbers
    return b"".join(parts)


def _pack_part(numbers: np.ndarray, bits: int) -> bytes:
    if bits == 8:
        return numbers.tobytes()
    if bits == 1:
        return np.packbits(numbers, bitorder="little").tobytes()
    per_byte = 8 // bits
    missing = -len(numbers) % per_byte
    if missing:
        numbers = np.concatenate([numbers, np.zeros(missing, np.uint8)])
    # Four (or two) neighbors are read as one number and joined by two (or one) shifts.
    if bits == 4:
        pairs = numbers.view("<u2")
        return bytes(((pairs | pairs >> 4) & 0xFF).astype(np.uint8))
    quads = numbers.view("<u4")
    quads = quads | quads >> 6
    return bytes(((quads | quads >> 12) & 0xFF).astype(np.uint8))


def unpack(reader: Reader, count: int, bits: int) -> np.ndarray:
    """Unpack the result of :func:`pack`."""
    total = np.zeros(count, np.uint8)
    shift = 0
    for part in widths(bits):
        found = _unpack_part(reader.array("u1", -(-count * part // 8)), count, part)
        total |= found << shift if shift else found
        shift += part
    return total


def _unpack_part(packed: np.ndarray, count: int, bits: int) -> np.ndarray:
    if bits == 8:
        return packed
    if bits == 1:
        return np.unpackbits(packed, count=count, bitorder="little")
    per_byte = 8 // bits
    found = np.empty((len(packed), per_byte), np.uint8)
    for place in range(per_byte):
        found[:, place] = packed >> (bits * place) & ((1 << bits) - 1)
    return found.reshape(-1)[:count]


def pack_trits(numbers: np.ndarray) -> bytes:
    """Pack numbers 0, 1 and 2, five to a byte."""
    missing = -len(numbers) % _TRITS
    if missing:
        numbers = np.concatenate([numbers, np.zeros(missing, np.uint8)])
    fives = numbers.reshape(-1, _TRITS)
    total = fives[:, 4] * np.uint8(3)
    for place in (3, 2, 1):
        total += fives[:, place]
        total *= np.uint8(3)
    total += fives[:, 0]
    return total.tobytes()


def unpack_trits(reader: Reader, count: int) -> np.ndarray:
    """Unpack the result of :func:`pack_trits`."""
    packed = reader.array("u1", -(-count // _TRITS))
    found: np.ndarray = _TRIT_TABLE[packed].reshape(-1)[:count]
    return found
