"""What every payload begins with: a header of fixed size that says what follows and guards it.

======  =====  ==========================================================
offset  bytes  content
======  =====  ==========================================================
0       4      ``b"ACLZ"``
4       1      version of the format, 1
5       1      kind: which decoder reads the body
6       1      number type of the tensor
7       1      1 if the body is the tensor itself, bit for bit
8       8      number of elements
16      8      length of the body in bytes
24      4      CRC-32 of the first 24 bytes and the body
======  =====  ==========================================================

Numbers are little-endian. A CRC-32 finds every burst of up to 32 wrong bits and misses one in
four billion other damages; it is no protection against somebody who wants to forge a payload.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from accelerando.exceptions import PayloadError

MAGIC, VERSION = b"ACLZ", 1
_FIELDS = struct.Struct("<4sBBBBQQ")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECK.size
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

Buffer = bytes | bytearray | memoryview


class Content(NamedTuple):
    """A payload whose header was found right."""

    kind: int
    dtype: torch.dtype
    raw: bool
    numel: int
    body: memoryview


def seal(kind: int, dtype: torch.dtype, numel: int, body: bytes, *, raw: bool = False) -> bytes:
    """Put the header before a body."""
    fields = _FIELDS.pack(MAGIC, VERSION, kind, DTYPES.index(dtype), raw, numel, len(body))
    return b"".join((fields, _CHECK.pack(zlib.crc32(body, zlib.crc32(fields))), body))


def unseal(payload: Buffer) -> Content:
    """Check a payload's header, length and checksum; raise if one is wrong."""
    view = memoryview(payload).cast("B")
    if len(view) < HEADER_BYTES:
        raise PayloadError(
            f"A payload has at least {HEADER_BYTES} bytes, this one has {len(view)}: it was cut."
        )
    magic, version, kind, dtype, raw, numel, length = _FIELDS.unpack_from(view)
    if magic != MAGIC:
        raise PayloadError(f"This is no payload of accelerando.compress: it begins with {magic!r}.")
    if version != VERSION:
        raise PayloadError(f"The payload has version {version}; this accelerando reads {VERSION}.")
    body = view[HEADER_BYTES:]
    if len(body) != length:
        raise PayloadError(
            f"The payload's header announces {length} bytes and {len(body)} follow: it was cut, or "
            "something was appended."
        )
    (check,) = _CHECK.unpack_from(view, _FIELDS.size)
    if check != zlib.crc32(body, zlib.crc32(view[: _FIELDS.size])) or dtype >= len(DTYPES):
        raise PayloadError("The payload is damaged: its checksum is wrong.")
    return Content(kind, DTYPES[dtype], bool(raw), numel, body)


class Reader:
    """Take a body apart from front to back; what is missing raises."""

    def __init__(self, body: memoryview) -> None:
        self._body, self._at = body, 0

    def take(self, count: int) -> memoryview:
        """Return the next bytes."""
        if count < 0 or self._at + count > len(self._body):
            raise PayloadError("The payload's body ends too early.")
        self._at += count
        return self._body[self._at - count : self._at]

    def fields(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the next numbers of a struct."""
        return form.unpack(self.take(form.size))

    def array(self, dtype: str, count: int) -> np.ndarray:
        """Return the next `count` numbers."""
        return np.frombuffer(self.take(np.dtype(dtype).itemsize * count), dtype=dtype)

    def end(self) -> None:
        """Raise if anything is left."""
        if self._at != len(self._body):
            raise PayloadError("The payload's body is longer than its content.")


# -- tensors as bytes -----------------------------------------------------------------------------


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Return a tensor's elements as they are in memory."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.copy_(tensor.detach().reshape(-1))
    return bytes(flat.view(torch.uint8).numpy())


def bytes_tensor(content: Buffer, dtype: torch.dtype) -> torch.Tensor:
    """Read what :func:`tensor_bytes` wrote, into memory of its own."""
    if len(content) % dtype.itemsize:
        raise PayloadError("The payload's body ends within a number.")
    if not len(content):
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the number type to compute in: float64 for float64, float32 for the others."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def stored(dtype: torch.dtype) -> str:
    """Return NumPy's name of :func:`working_dtype`, little-endian."""
    return "<f8" if dtype == torch.float64 else "<f4"


def numel_of(shape: Sequence[int]) -> int:
    """Return how many elements a shape has."""
    return math.prod(shape)
