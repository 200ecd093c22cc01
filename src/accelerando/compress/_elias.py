"""Elias-Fano code: increasing positions in little more space than their entropy.

Of ``count`` positions below ``n``, the low ``⌊log₂(n / count)⌋`` bits are stored as they are. The
high parts never decrease and are stored in unary. A position takes less than
``2 + log₂(n / count)`` bits, which is half a bit more than the entropy. Encoding and decoding are
vectorized.

References
----------
P. Elias, Efficient storage and retrieval by content and address of static files (1974).
"""

from __future__ import annotations

import numpy as np

from accelerando.compress._payload import Reader


def encode_positions(positions: np.ndarray, n: int) -> bytes:
    """Encode increasing positions below `n`."""
    count = len(positions)
    if not count:
        return b""
    low = _low_bits(count, n)
    positions = positions.astype(np.int64)
    high = np.zeros(count + (n >> low) + 1, np.uint8)
    high[(positions >> low) + np.arange(count)] = 1
    digits = (positions[:, None] >> _shifts(low) & 1).astype(np.uint8)
    return np.packbits(high).tobytes() + np.packbits(digits).tobytes()


def decode_positions(reader: Reader, count: int, n: int) -> np.ndarray:
    """Decode the result of :func:`encode_positions`."""
    if not count:
        return np.zeros(0, np.int64)
    if count > n:
        raise ValueError(f"{count} positions do not fit below {n}")
    low = _low_bits(count, n)
    bits = count + (n >> low) + 1
    high = np.flatnonzero(np.unpackbits(reader.array("u1", -(-bits // 8)), count=bits))
    if len(high) != count:
        raise ValueError("the number of positions is wrong")
    packed = reader.array("u1", -(-count * low // 8))
    digits = np.unpackbits(packed, count=count * low).reshape(count, low).astype(np.int64)
    found: np.ndarray = ((high - np.arange(count)) << low) | (digits << _shifts(low)).sum(axis=1)
    if found[-1] >= n or (np.diff(found) <= 0).any():
        raise ValueError("positions do not increase, or lie outside the tensor")
    return found


def _low_bits(count: int, n: int) -> int:
    return max(0, (n // count).bit_length() - 1)


def _shifts(bits: int) -> np.ndarray:
    """Return the shifts that move each binary digit to the lowest place, highest digit first."""
    return np.arange(bits - 1, -1, -1)
