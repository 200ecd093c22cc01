"""Records of a search's files: bytes with a length, a checksum and a signature.

A record is a header, the checksum of the header, its signature, and the payload. The header has the
length of the payload and its checksum. The header has its own checksum, so that a damaged length is
not taken for a record that was not written to its end. The signature depends on a key, so that
nobody can write a record who does not have the key.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import pickletools
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["DamagedError", "is_plain", "plain_records", "read_records", "record", "sole_record"]

# A pickle of protocol 255: versions that know no checksums refuse the file and do not cut it.
_MARK = b"\x80\xffR2"
_HEADER = struct.Struct("<4sQ32s")  # the mark, the length of the payload, its checksum
_CHECK = struct.Struct("<I")
_SIGNATURE_BYTES = 32
_HEAD_BYTES = _HEADER.size + _CHECK.size + _SIGNATURE_BYTES


class DamagedError(ValueError):
    """A file has bytes that are not what was written.

    Parameters
    ----------
    start : int
        The position of the first record that is damaged.
    foreign : bool
        Whether only the signature is wrong: the record was written with another key.
    """

    def __init__(self, start: int, *, foreign: bool = False) -> None:
        super().__init__(f"the record at byte {start} is not what was written")
        self.start = start
        self.foreign = foreign


def record(payload: bytes, key: bytes = b"") -> bytes:
    """Return a payload with its header, signed with `key`.

    Examples
    --------
    >>> import io
    >>> log = io.BytesIO(record(b"one") + record(b"two"))
    >>> list(read_records(log))
    [b'one', b'two']
    """
    header = _HEADER.pack(_MARK, len(payload), _checksum(payload))
    return b"".join((header, _CHECK.pack(zlib.crc32(header)), _signature(header, key), payload))


def _checksum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=32).digest()


def _signature(header: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(header, digest_size=_SIGNATURE_BYTES, key=key).digest()


def read_records(file: BinaryIO, key: bytes | None = b"") -> Iterator[bytes]:
    """Yield the payloads of a file, and end before a record that the file does not have whole.

    After each payload, and at the end, ``file.tell()`` is the end of the records so far.

    Parameters
    ----------
    file : file
        The file.
    key : bytes or None
        With what the records were signed. None reads records with any signature.

    Raises
    ------
    DamagedError
        If a header or a payload does not have its checksum, or if the signature is wrong.
    """
    while True:
        start = file.tell()
        head = file.read(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES:
            break
        mark, length, checksum = _HEADER.unpack_from(head)
        (check,) = _CHECK.unpack_from(head, _HEADER.size)
        if mark != _MARK or check != zlib.crc32(head[: _HEADER.size]):
            raise DamagedError(start)
        payload = file.read(length)
        if len(payload) < length:
            break
        if _checksum(payload) != checksum:
            raise DamagedError(start)
        signed = head[-_SIGNATURE_BYTES:]
        if key is not None and not hmac.compare_digest(
            signed, _signature(head[: _HEADER.size], key)
        ):
            raise DamagedError(start, foreign=True)
        yield payload
    file.seek(start)


def is_plain(first: bytes) -> bool:
    """Return True if a file starts as the pickles do that were written without checksums.

    One damaged byte does not make a record look like that.
    """
    return first[:2] in (b"\x80\x04", b"\x80\x05") and first[2:3] == b"\x95"


def plain_records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the pickles of a file without checksums; as :func:`read_records` otherwise.

    A length that is damaged looks like the end of the file.
    """
    size = file.seek(0, os.SEEK_END)
    end = 0
    while end < size:
        start = file.seek(end)
        try:
            for _ in pickletools.genops(file):  # reads to the end of one pickle, and runs nothing
                pass
        except ValueError as error:
            if file.tell() < size:
                raise DamagedError(start) from error
            break
        end = file.tell()
        file.seek(start)
        yield file.read(end - start)
    file.seek(end)


def sole_record(content: bytes, key: bytes | None = b"") -> bytes:
    """Return the payload of a file with one record.

    If `key` is None, a pickle without a checksum is returned as it is.

    Examples
    --------
    >>> sole_record(record(b"state"))
    b'state'
    """
    if key is None and is_plain(content):
        return content
    file = io.BytesIO(content)
    payloads = list(read_records(file, key))
    if len(payloads) != 1 or file.tell() < len(content):
        raise DamagedError(0)
    return payloads[0]
