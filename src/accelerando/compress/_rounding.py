r"""Random rounding: the arithmetic and the payload that QSGD, TernGrad and LqQuantize share.

A tensor is divided into buckets of consecutive entries. In a bucket with scale
:math:`c = ‖g‖_q` and :math:`s` levels an entry becomes

.. math:: ĝ_i = \frac{c}{s} \operatorname{sign}(g_i) \left(⌊s|g_i|/c⌋ + ζ_i\right),

where ζᵢ is 1 with a probability equal to the fractional part of :math:`s|g_i|/c`. Hence ĝ is
unbiased. The comparison with a random number has a resolution of 2⁻²⁴ levels.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from accelerando.compress import _bits
from accelerando.compress._codec import body_decoder
from accelerando.compress._payload import Reader, stored, working_dtype
from accelerando.exceptions import PayloadError

KIND = 1
_FORM = struct.Struct("<BBQ")  # levels, coding, bucket
_PACKED, _ELIAS = 0, 1  # codings; Elias' γ code was removed
_PIECE = 1 << 15  # entries per piece: intermediate results stay in the cache


def encode(
    numbers: torch.Tensor,
    limit: float,
    generator: torch.Generator | None,
    levels: int,
    q: float,
    bucket: int | None,
) -> bytes | None:
    """Round at random and pack; return None if decoded values could exceed `limit`."""
    flat = numbers.reshape(-1)
    n = flat.numel()
    size = min(bucket or n, n)
    scales = _scales(flat, size, q)
    if not _representable(scales, limit):
        return None
    found = np.empty(n, np.uint8)
    widths = torch.where(scales > 0, scales / levels, 1.0)
    negative = _negative(flat)
    for start, stop, first, rows in _pieces(n, size):
        piece = flat[start:stop].abs().view(rows, -1)
        piece /= widths[first : first + rows, None]
        piece += _uniform(piece.shape, piece.dtype, generator)
        # Floating-point rounding may lift the largest entry of a bucket above the last level.
        found[start:stop] = piece.clamp_(max=levels).view(-1).numpy().astype(np.uint8)
    form = _FORM.pack(levels, _PACKED, size)
    head = form + scales.numpy().astype(stored(flat.dtype), copy=False).tobytes()
    if levels == 1:
        found <<= negative.view(np.uint8)
        return head + _bits.pack_trits(found)
    signs = np.packbits(negative, bitorder="little").tobytes()
    return b"".join((head, signs, _bits.pack(found, levels.bit_length())))


@body_decoder(KIND)
def decode(reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Decode a body that :func:`encode` returned."""
    levels, coding, bucket = reader.fields(_FORM)
    if coding == _ELIAS:
        raise PayloadError(
            "The payload was encoded by QSGD(coding='elias'), which was removed from accelerando. "
            "Decode it with the version that encoded it."
        )
    if not bucket or not levels or coding != _PACKED:
        raise ValueError("the settings are not valid")
    encoded = reader.array(stored(dtype), -(-n // bucket))
    scales = torch.from_numpy(encoded.astype(encoded.dtype.newbyteorder("="))) / levels
    found = torch.empty(n, dtype=dtype)
    array = found.numpy()
    if levels == 1:
        values = np.array([0, 1, -1, 0], dtype=array.dtype)
        np.take(values, _bits.unpack_trits(reader, n), out=array)
    else:
        signs = np.unpackbits(reader.array("u1", -(-n // 8)), count=n, bitorder="little")
        found.copy_(torch.from_numpy(_bits.unpack(reader, n, levels.bit_length())))
        # The sign is the highest bit of a float: setting it is faster than a multiplication.
        bits = array.view(f"u{array.itemsize}")
        bits |= signs.astype(bits.dtype) << (8 * array.itemsize - 1)
    for start, stop, first, rows in _pieces(n, bucket):
        found[start:stop].view(rows, -1).mul_(scales[first : first + rows, None])
    return found


def expected_error(tensor: torch.Tensor, levels: int, q: float, bucket: int | None) -> float:
    """Return Σ (c/s)² f(1 − f), where f is the fraction that is rounded at random."""
    flat = tensor.detach().reshape(-1).to(working_dtype(tensor.dtype))
    n = flat.numel()
    if not n:
        return 0.0
    size = min(bucket or n, n)
    scales = _scales(flat, size, q)
    if not _representable(scales, torch.finfo(tensor.dtype).max):
        return 0.0  # sent as it is
    widths = scales.double() / levels
    total = 0.0
    for start, stop, first, rows in _pieces(n, size):
        width = widths[first : first + rows, None]
        steps = flat[start:stop].double().abs().view(rows, -1) / torch.where(width > 0, width, 1.0)
        fraction = steps - steps.floor()
        total += float((width**2 * fraction * (1 - fraction)).sum())
    return total


def _representable(scales: torch.Tensor, limit: float) -> bool:
    """Return True if no decoded value overflows, and none is a number with few significant bits."""
    smallest = 256 * torch.finfo(scales.dtype).tiny  # below it, levels are subnormal numbers
    return float(scales.max()) <= limit and not bool(((scales > 0) & (scales < smallest)).any())


def _negative(flat: torch.Tensor) -> np.ndarray:
    """Return which entries have their sign bit set; faster than a comparison of floats."""
    array = flat.numpy()
    return array.view(f"i{array.itemsize}") < 0


def _uniform(
    shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator | None
) -> torch.Tensor:
    """Draw numbers from [0, 1) in steps of 2⁻²⁴, twice as fast as ``torch.rand``.

    A 64-bit draw provides two entries. Float64 gets the 53 bits of ``torch.rand``.
    """
    if dtype == torch.float64:
        return torch.rand(tuple(shape), dtype=dtype, generator=generator)
    count = math.prod(shape)
    draws = torch.empty((count + 1) // 2, dtype=torch.int64)
    draws.random_(-(2**63), None, generator=generator)
    integers = draws.view(torch.int32)[:count].bitwise_and_(0xFFFFFF)
    found: torch.Tensor = integers.to(dtype).mul_(2.0**-24)
    return found.view(tuple(shape))


def _scales(flat: torch.Tensor, bucket: int, q: float) -> torch.Tensor:
    """Return the norm of each bucket, at least its largest entry, without overflow."""
    full = flat.numel() // bucket * bucket
    parts = [flat[:full].view(-1, bucket)]
    if full < flat.numel():
        parts.append(flat[full:].view(1, -1))
    return torch.cat([_norms(part, q) for part in parts])


def _norms(rows: torch.Tensor, q: float) -> torch.Tensor:
    # Twenty times as fast as torch.linalg.vector_norm(ord=inf).
    largest = torch.maximum(rows.amax(dim=1), -rows.amin(dim=1))
    if q == math.inf:
        return largest
    if q == 2 and bool(((largest > 1e-12) & (largest < 1e12)).all()):
        # Squares neither overflow nor underflow.
        return torch.maximum(torch.linalg.vector_norm(rows, dim=1), largest)
    relative = rows / torch.where(largest > 0, largest, 1.0)[:, None]
    norms: torch.Tensor = torch.linalg.vector_norm(relative, ord=q, dim=1) * largest
    return torch.maximum(norms, largest)


def _pieces(n: int, bucket: int) -> Iterator[tuple[int, int, int, int]]:
    """Divide n entries into (start, stop, first bucket, buckets) that fit into the cache."""
    full = n // bucket * bucket
    if bucket > _PIECE:
        for start in range(0, n, bucket):
            for begin in range(start, min(start + bucket, n), _PIECE):
                yield begin, min(begin + _PIECE, start + bucket, n), start // bucket, 1
        return
    step = _PIECE // bucket * bucket
    for start in range(0, full, step):
        stop = min(start + step, full)
        yield start, stop, start // bucket, (stop - start) // bucket
    if full < n:
        yield full, n, full // bucket, 1
