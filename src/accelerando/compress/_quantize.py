r"""Random rounding to a few levels: QSGD, TernGrad and what lies between, in one implementation.

A tensor is divided into buckets of so many consecutive entries. In a bucket with scale
:math:`c = ‖g‖_q` and :math:`s` levels an entry becomes

.. math:: ĝ_i = \frac{c}{s} \operatorname{sign}(g_i) \left(⌊s|g_i|/c⌋ + ζ_i\right),

where ζᵢ is 1 with the probability of the fraction that was cut off, so that ĝ is unbiased. The
comparison with a random number has a resolution of 2⁻²⁴ levels.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from accelerando._whole import is_whole
from accelerando.compress import _bits, _elias
from accelerando.compress._codec import Codec, body_decoder
from accelerando.compress._payload import Reader, stored, working_dtype

KIND = 1
_FORM = struct.Struct("<BBQ")  # levels, coding, bucket
_CODINGS = ("packed", "elias")
_PIECE = 1 << 15  # entries that are worked on at once: their copies stay in the cache


@dataclass(frozen=True)
class LqQuantize(Codec):
    """ℓ_q-quantization: each entry becomes 0 or ±‖g‖_q.

    An entry survives with probability :math:`p_i = |g_i| / ‖g‖_q`. That is atomic sparsification
    with the optimal probabilities for :math:`‖g‖_1 / ‖g‖_q` atoms, and
    :math:`E‖ĝ‖² = ‖g‖_1 ‖g‖_q`. With q = 2 it is QSGD with one bit, with q = ∞ TernGrad. Five
    entries go into a byte.

    Parameters
    ----------
    q : float, default=2.0
        Which norm; at least 1. A larger one gives less noise and more entries that are not zero.
    bucket : int or None, default=None
        Entries that share a norm; None: the whole tensor.

    References
    ----------
    Theorem 10 of the dissertation "Accelerating active machine learning" (S. Sievert); Wang et
    al., ATOMO: Communication-efficient learning via atomic sparsification (2018).

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import LqQuantize
    >>> g = torch.tensor([3.0, 0.0, -4.0, 0.0])
    >>> payload = LqQuantize(q=2).encode(g, torch.Generator().manual_seed(1))
    >>> sorted(set(LqQuantize().decode(payload, (4,)).abs().tolist()))
    [0.0, 5.0]
    """

    unbiased: ClassVar[bool] = True
    kind: ClassVar[int] = KIND
    q: float = 2.0
    bucket: int | None = None

    def __post_init__(self) -> None:
        _check_norm(self, "q", self.q)
        check_bucket(self, self.bucket)

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        return _quantized(numbers, limit, generator, 1, self.q, self.bucket, "packed")

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return ‖g‖₁‖g‖_q − ‖g‖², summed over the buckets."""
        return _expected_error(tensor, 1, self.q, self.bucket)


@dataclass(frozen=True)
class TernGrad(Codec):
    """Each entry becomes 0 or ±max|g|: :class:`LqQuantize` with q = ∞.

    Parameters
    ----------
    bucket : int or None, default=None
        Entries that share a maximum; None: the whole tensor, as in the paper, layer by layer.

    References
    ----------
    Wen et al., TernGrad: Ternary gradients to reduce communication in distributed deep learning
    (2017).

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import TernGrad
    >>> len(TernGrad().encode(torch.randn(100_000)))  # of 400,000
    20042
    """

    unbiased: ClassVar[bool] = True
    kind: ClassVar[int] = KIND
    bucket: int | None = None

    def __post_init__(self) -> None:
        check_bucket(self, self.bucket)

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        return _quantized(numbers, limit, generator, 1, math.inf, self.bucket, "packed")

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return ‖g‖₁ max|g| − ‖g‖², summed over the buckets."""
        return _expected_error(tensor, 1, math.inf, self.bucket)


@dataclass(frozen=True)
class QSGD(Codec):
    r"""Random rounding to 2^bits − 1 levels and a sign.

    Packed, an entry takes bits + 1 bits, and 1.6 with one bit; with Elias' codes what its value
    takes, less where most entries are zero. The scale of every bucket is a float32.

    Parameters
    ----------
    bits : int, default=4
        1 to 8: of the level, beside the sign.
    bucket : int or None, default=512
        Entries that share a scale; None: the whole tensor.
    norm : float, default=2.0
        Of a bucket, as its scale: 2.0 as in the paper, or ``math.inf``, the largest entry, which
        has less noise and is what most implementations use.
    coding : "packed" or "elias", default="packed"
        Elias' codes are shorter for few bits and large buckets, and take longer.

    References
    ----------
    Alistarh et al., QSGD: Communication-efficient SGD via gradient quantization and encoding
    (2017).

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import QSGD
    >>> g = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    >>> codec = QSGD(bits=8)
    >>> decoded = codec.decode(codec.encode(g, torch.Generator().manual_seed(1)), g.shape)
    >>> bool((decoded - g).abs().max() < 0.1), len(codec.encode(g))
    (True, 1171)
    """

    unbiased: ClassVar[bool] = True
    kind: ClassVar[int] = KIND
    bits: int = 4
    bucket: int | None = 512
    norm: float = 2.0
    coding: str = "packed"

    def __post_init__(self) -> None:
        if isinstance(self.bits, bool) or self.bits not in range(1, 9):
            raise ValueError(f"bits of QSGD must be a whole number from 1 to 8. Got {self.bits!r}.")
        check_bucket(self, self.bucket)
        _check_norm(self, "norm", self.norm)
        if self.coding not in _CODINGS:
            raise ValueError(f'coding of QSGD must be "packed" or "elias". Got {self.coding!r}.')

    @property
    def levels(self) -> int:
        """Levels above zero."""
        return (1 << self.bits) - 1

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        return _quantized(
            numbers, limit, generator, self.levels, self.norm, self.bucket, self.coding
        )

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return Σ (c/s)² f(1 − f), where f is the fraction that is rounded at random."""
        return _expected_error(tensor, self.levels, self.norm, self.bucket)


# -- encoding -------------------------------------------------------------------------------------


def _quantized(
    numbers: torch.Tensor,
    limit: float,
    generator: torch.Generator | None,
    levels: int,
    q: float,
    bucket: int | None,
    coding: str,
) -> bytes | None:
    flat = numbers.reshape(-1)
    n = flat.numel()
    size = min(bucket or n, n)
    scales = _scales(flat, size, q)
    if not float(scales.max()) <= limit:
        return None
    if bool(((scales > 0) & (scales < 256 * torch.finfo(scales.dtype).tiny)).any()):
        return None  # a level would be a denormal number, with few digits or none
    found = np.empty(n, np.uint8)
    widths = torch.where(scales > 0, scales / levels, 1.0)
    negative = _signs(flat)
    for start, stop, first, rows in _pieces(n, size):
        piece = flat[start:stop].abs().view(rows, -1)
        piece /= widths[first : first + rows, None]
        piece += _uniform(piece.shape, piece.dtype, generator)
        # Rounding may lift the largest entry of a bucket just over the last level.
        found[start:stop] = piece.clamp_(max=levels).view(-1).numpy().astype(np.uint8)
    form = _FORM.pack(levels, _CODINGS.index(coding), size)
    head = form + scales.numpy().astype(stored(flat.dtype), copy=False).tobytes()
    if coding == "elias":
        return head + _sparse(found, negative, levels)
    if levels == 1:
        found <<= negative.view(np.uint8)
        return head + _bits.pack_trits(found)
    signs = np.packbits(negative, bitorder="little").tobytes()
    return b"".join((head, signs, _bits.pack(found, levels.bit_length())))


def _sparse(found: np.ndarray, negative: np.ndarray, levels: int) -> bytes:
    there = np.flatnonzero(found)
    parts = [
        struct.pack("<Q", len(there)),
        _elias.encode_positions(there, len(found)),
        np.packbits(negative[there], bitorder="little").tobytes(),
    ]
    if levels > 1:
        parts.append(_elias.encode_numbers(found[there]))
    return b"".join(parts)


def _signs(flat: torch.Tensor) -> np.ndarray:
    """Tell which entries are negative, from the bit that says so: faster than a comparison."""
    array = flat.numpy()
    return array.view(f"i{array.itemsize}") < 0


def _uniform(
    shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator | None
) -> torch.Tensor:
    """Draw numbers from [0, 1) in steps of 2⁻²⁴, twice as fast as ``torch.rand``.

    A 64-bit draw serves two entries. Float64 gets ``torch.rand``'s 53 bits.
    """
    if dtype == torch.float64:
        return torch.rand(tuple(shape), dtype=dtype, generator=generator)
    count = math.prod(shape)
    draws = torch.empty((count + 1) // 2, dtype=torch.int64)
    draws.random_(-(2**63), None, generator=generator)
    whole = draws.view(torch.int32)[:count].bitwise_and_(0xFFFFFF)
    found: torch.Tensor = whole.to(dtype).mul_(2.0**-24)
    return found.view(tuple(shape))


def _scales(flat: torch.Tensor, bucket: int, q: float) -> torch.Tensor:
    """Return each bucket's norm, never below its largest entry, without overflow on the way."""
    whole = flat.numel() // bucket * bucket
    parts = [flat[:whole].view(-1, bucket)]
    if whole < flat.numel():
        parts.append(flat[whole:].view(1, -1))
    return torch.cat([_norms(part, q) for part in parts])


def _norms(rows: torch.Tensor, q: float) -> torch.Tensor:
    # Twenty times as fast as torch.linalg.vector_norm(ord=inf).
    largest = torch.maximum(rows.amax(dim=1), -rows.amin(dim=1))
    if q == math.inf:
        return largest
    if q == 2 and bool(((largest > 1e-12) & (largest < 1e12)).all()):
        # Squares neither overflow nor vanish.
        return torch.maximum(torch.linalg.vector_norm(rows, dim=1), largest)
    relative = rows / torch.where(largest > 0, largest, 1.0)[:, None]
    norms: torch.Tensor = torch.linalg.vector_norm(relative, ord=q, dim=1) * largest
    return torch.maximum(norms, largest)


def _pieces(n: int, bucket: int) -> Iterator[tuple[int, int, int, int]]:
    """Divide n entries into (start, stop, first bucket, buckets) that fit into the cache."""
    whole = n // bucket * bucket
    if bucket > _PIECE:
        for start in range(0, n, bucket):
            for begin in range(start, min(start + bucket, n), _PIECE):
                yield begin, min(begin + _PIECE, start + bucket, n), start // bucket, 1
        return
    step = _PIECE // bucket * bucket
    for start in range(0, whole, step):
        stop = min(start + step, whole)
        yield start, stop, start // bucket, (stop - start) // bucket
    if whole < n:
        yield whole, n, whole // bucket, 1


# -- decoding -------------------------------------------------------------------------------------


@body_decoder(KIND)
def _decode(reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    levels, coding, bucket = reader.fields(_FORM)
    if not bucket or not levels or coding >= len(_CODINGS):
        raise ValueError("wrong settings")
    stamped = reader.array(stored(dtype), -(-n // bucket))
    scales = torch.from_numpy(stamped.astype(stamped.dtype.newbyteorder("="))) / levels
    found = torch.empty(n, dtype=dtype)
    if _CODINGS[coding] == "elias":
        found.zero_()
        _read_sparse(reader, found.numpy(), levels)
    elif levels == 1:
        trits = _bits.unpack_trits(reader, n)
        values = np.array([0, 1, -1, 0], dtype=found.numpy().dtype)
        np.take(values, trits, out=found.numpy())
    else:
        signs = np.unpackbits(reader.array("u1", -(-n // 8)), count=n, bitorder="little")
        found.copy_(torch.from_numpy(_bits.unpack(reader, n, levels.bit_length())))
        # The sign is the highest bit of a float: setting it costs less than a multiplication.
        array = found.numpy()
        whole = array.view(f"u{array.itemsize}")
        whole |= signs.astype(whole.dtype) << (8 * array.itemsize - 1)
    for start, stop, first, rows in _pieces(n, bucket):
        found[start:stop].view(rows, -1).mul_(scales[first : first + rows, None])
    return found


def _read_sparse(reader: Reader, found: np.ndarray, levels: int) -> None:
    (count,) = struct.unpack("<Q", reader.take(8))
    there = _elias.decode_positions(reader, count, len(found))
    signs = np.unpackbits(reader.array("u1", -(-count // 8)), count=count, bitorder="little")
    values = _elias.decode_numbers(reader, count) if levels > 1 else np.ones(count)
    found[there] = np.where(signs, -values, values)


# -- theory ---------------------------------------------------------------------------------------


def _expected_error(tensor: torch.Tensor, levels: int, q: float, bucket: int | None) -> float:
    flat = tensor.detach().reshape(-1).to(working_dtype(tensor.dtype))
    n = flat.numel()
    if not n:
        return 0.0
    size = min(bucket or n, n)
    widths = _scales(flat, size, q).double() / levels
    total = 0.0
    for start, stop, first, rows in _pieces(n, size):
        width = widths[first : first + rows, None]
        steps = flat[start:stop].double().abs().view(rows, -1) / torch.where(width > 0, width, 1.0)
        fraction = steps - steps.floor()
        total += float((width**2 * fraction * (1 - fraction)).sum())
    return total


def check_bucket(codec: object, bucket: Any) -> None:
    """Raise unless a bucket is a whole number of entries, or None."""
    if bucket is None:
        return
    if not is_whole(bucket, 1):
        raise ValueError(
            f"bucket of {type(codec).__name__} must be a whole number of entries, at least 1, or "
            f"None for the whole tensor. Got {bucket!r}."
        )


def _check_norm(codec: object, name: str, q: Any) -> None:
    if isinstance(q, bool) or not isinstance(q, int | float) or not q >= 1:
        raise ValueError(
            f"{name} of {type(codec).__name__} must be a number of at least 1; math.inf is the "
            f"largest entry. Got {q!r}."
        )
