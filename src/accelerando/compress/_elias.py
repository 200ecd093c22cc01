"""Elias' codes for positions and for small numbers, written and read without a loop over them.

Positions of the non-zero entries go in the code of Elias and Fano: of ``count`` positions below
``n`` the low ``⌊log₂(n / count)⌋`` bits are packed as they are and the high parts, which only
grow, are written in unary; that takes less than ``2 + log₂(n / count)`` bits for each and half a
bit more than the entropy. Levels, of which small ones are frequent, go in Elias' γ code: a number
of k binary digits takes 2k − 1 bits. QSGD's paper uses the recursive ω code, which is never
shorter than γ below 16 and cannot be read in parallel. Here the unary and the binary halves of
all numbers stand in two streams, so that the unary one says at once where each number's digits are.

References
----------
P. Elias, Universal codeword sets and representations of the integers (1975); Efficient storage and
retrieval by content and address of static files (1974).
"""

from __future__ import annotations

import struct

import numpy as np

from accelerando.compress._payload import Reader

_SIZES = struct.Struct("<QQ")


def encode_positions(positions: np.ndarray, n: int) -> bytes:
    """Write increasing positions below `n`."""
    count = len(positions)
    if not count:
        return b""
    low = _low_bits(count, n)
    positions = positions.astype(np.int64)
    high = np.zeros(count + (n >> low) + 1, np.uint8)
    high[(positions >> low) + np.arange(count)] = 1
    digits = _binary(positions & ((1 << low) - 1), np.full(count, low))
    return np.packbits(high).tobytes() + digits


def decode_positions(reader: Reader, count: int, n: int) -> np.ndarray:
    """Read what :func:`encode_positions` wrote."""
    if not count:
        return np.zeros(0, np.int64)
    if count > n:
        raise ValueError(f"{count} positions do not fit below {n}")
    low = _low_bits(count, n)
    bits = count + (n >> low) + 1
    high = np.flatnonzero(np.unpackbits(reader.array("u1", -(-bits // 8)), count=bits))
    if len(high) != count:
        raise ValueError("the number of positions is wrong")
    found: np.ndarray = (high - np.arange(count)) << low
    found |= _from_binary(reader, np.full(count, low))
    if found[-1] >= n or (np.diff(found) <= 0).any():
        raise ValueError("positions do not increase, or lie outside of the tensor")
    return found


def encode_numbers(numbers: np.ndarray) -> bytes:
    """Write numbers of at least 1."""
    lengths = _digits(numbers) - 1
    ends = np.cumsum(lengths + 1)
    unary = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    unary[ends - 1] = 1
    digits = _binary(numbers.astype(np.int64) - (1 << lengths), lengths)
    return _SIZES.pack(len(unary), len(digits)) + np.packbits(unary).tobytes() + digits


def decode_numbers(reader: Reader, count: int) -> np.ndarray:
    """Read what :func:`encode_numbers` wrote."""
    bits, size = reader.fields(_SIZES)
    unary = np.unpackbits(reader.array("u1", -(-bits // 8)), count=bits)
    ends = np.flatnonzero(unary)
    if len(ends) != count:
        raise ValueError("the number of levels is wrong")
    lengths = np.diff(ends, prepend=-1) - 1
    if size != -(-int(lengths.sum()) // 8) or (count and lengths.max() > 62):
        raise ValueError("the levels' digits have the wrong length")
    found: np.ndarray = (1 << lengths) | _from_binary(reader, lengths)
    return found


def _low_bits(count: int, n: int) -> int:
    return max(0, (n // count).bit_length() - 1)


def _digits(numbers: np.ndarray) -> np.ndarray:
    """Return how many binary digits each number has."""
    # Exact below 2⁵³: the exponent of a float64.
    found: np.ndarray = np.frexp(numbers.astype(np.float64))[1].astype(np.int64)
    return found


def _binary(numbers: np.ndarray, lengths: np.ndarray) -> bytes:
    """Write each number with its own count of digits, one after the other."""
    ends = np.cumsum(lengths)
    bits = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for digit in range(int(lengths.max(initial=0))):
        there = np.flatnonzero(lengths > digit)
        bits[ends[there] - 1 - digit] = numbers[there] >> digit & 1
    return np.packbits(bits).tobytes()


def _from_binary(reader: Reader, lengths: np.ndarray) -> np.ndarray:
    ends = np.cumsum(lengths)
    count = int(ends[-1]) if len(ends) else 0
    bits = np.unpackbits(reader.array("u1", -(-count // 8)), count=count)
    numbers = np.zeros(len(lengths), np.int64)
    for digit in range(int(lengths.max(initial=0))):
        there = np.flatnonzero(lengths > digit)
        numbers[there] |= bits[ends[there] - 1 - digit].astype(np.int64) << digit
    return numbers
