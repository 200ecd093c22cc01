"""Payload header: a fixed-size prefix that names the format and contains a checksum.

======  =====  ==========================================================
offset  bytes  content
======  =====  ==========================================================
0       4      ``b"ACLZ"``
4       1      version of the format, 1
5       1      kind: the decoder of the body
6       1      dtype of the tensor
7       1      1 if the body is the tensor itself, uncompressed
8       8      number of elements
16      8      length of the body in bytes
24      4      CRC-32 of the first 24 bytes and the body
======  =====  ==========================================================

Numbers are little-endian. A CRC-32 detects every burst of up to 32 wrong bits and misses one in
four billion other errors. It does not protect against forged payloads.
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
    """A payload whose header and checksum are right."""

    kind: int
    dtype: torch.dtype
    raw: bool
    numel: int
    body: memoryview


def seal(kind: int, dtype: torch.dtype, numel: int, body: bytes, *, raw: bool = False) -> bytes:
    """Return a payload: the header, followed by the body."""
    fields = _FIELDS.pack(MAGIC, VERSION, kind, DTYPES.index(dtype), raw, numel, len(body))
    return b"".join((fields, _CHECK.pack(zlib.crc32(body, zlib.crc32(fields))), body))


def unseal(payload: Buffer) -> Content:
    """Check header, length and checksum of a payload, and return its content."""
    view = memoryview(payload).cast("B")
    if len(view) < HEADER_BYTES:
        raise PayloadError(
            f"A payload has at least {HEADER_BYTES} bytes. This one was truncated to {len(view)}."
        )
    magic, version, kind, dtype, raw, numel, length = _FIELDS.unpack_from(view)
    if magic != MAGIC:
        raise PayloadError(
            f"This is not a payload of accelerando.compress: it begins with {magic!r}."
        )
    if version != VERSION:
        raise PayloadError(
            f"The payload has version {version}, and this version of accelerando reads {VERSION}."
        )
    body = view[HEADER_BYTES:]
    if len(body) != length:
        raise PayloadError(
            f"The payload's header announces {length} bytes, and {len(body)} follow: it was "
            "truncated, or extended."
        )
    (check,) = _CHECK.unpack_from(view, _FIELDS.size)
    if check != zlib.crc32(body, zlib.crc32(view[: _FIELDS.size])) or dtype >= len(DTYPES):
        raise PayloadError("The payload is damaged: its checksum is wrong.")
    return Content(kind, DTYPES[dtype], bool(raw), numel, body)


class Reader:
    """Read the fields of a body one after the other; raise if bytes are missing."""

    def __init__(self, body: memoryview) -> None:
        self._body, self._at = body, 0

    def take(self, count: int) -> memoryview:
        """Return the next bytes."""
        if count < 0 or self._at + count > len(self._body):
            raise PayloadError("The payload's body ends too early.")
        self._at += count
        return self._body[self._at - count : self._at]

    def fields(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the next fields, in the format of a struct."""
        return form.unpack(self.take(form.size))

    def array(self, dtype: str, count: int) -> np.ndarray:
        """Return the next `count` numbers."""
        return np.frombuffer(self.take(np.dtype(dtype).itemsize * count), dtype=dtype)

    def end(self) -> None:
        """Raise if bytes are left."""
        if self._at != len(self._body):
            raise PayloadError("The payload's body is longer than its content.")


# -- tensors as bytes -----------------------------------------------------------------------------


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Return the elements of a tensor as the bytes in memory."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.copy_(tensor.detach().reshape(-1))
    return bytes(flat.view(torch.uint8).numpy())


def bytes_tensor(content: Buffer, dtype: torch.dtype) -> torch.Tensor:
    """Return a new flat tensor from the result of :func:`tensor_bytes`."""
    if len(content) % dtype.itemsize:
        raise PayloadError("The payload's body ends inside a number.")
    if not len(content):
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: float64 for float64, float32 for the others."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def stored(dtype: torch.dtype) -> str:
    """Return the name of NumPy's little-endian :func:`working_dtype`."""
    return "<f8" if dtype == torch.float64 else "<f4"


def numel_of(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    return math.prod(shape)
