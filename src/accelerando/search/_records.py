"""Records of a search's files: bytes with a length and a checksum.

A record is a header, the checksum of the header, and the payload. The header has the length of the
payload and its checksum. The header has its own checksum, so that a damaged length is not
taken for a record that was not written to its end.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickletools
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["DamagedError", "is_plain", "plain_records", "read_records", "record", "sole_record"]

# A pickle of protocol 255: versions that know no checksums refuse the file and do not cut it.
_MARK = b"\x80\xffR1"
_HEADER = struct.Struct("<4sQ16s")  # the mark, the length of the payload, its checksum
_CHECK = struct.Struct("<I")


class DamagedError(ValueError):
    """A file has bytes that are not what was written.

    Parameters
    ----------
    start : int
        The position of the first record that is damaged.
    """

    def __init__(self, start: int) -> None:
        super().__init__(f"the record at byte {start} is not what was written")
        self.start = start


def record(payload: bytes) -> bytes:
    """Return a payload with its header.

    Examples
    --------
    >>> import io
    >>> log = io.BytesIO(record(b"one") + record(b"two"))
    >>> list(read_records(log))
    [b'one', b'two']
    """
    checksum = hashlib.blake2b(payload, digest_size=16).digest()
    header = _HEADER.pack(_MARK, len(payload), checksum)
    return b"".join((header, _CHECK.pack(zlib.crc32(header)), payload))


def read_records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the payloads of a file, and end before a record that the file does not have whole.

    After each payload, and at the end, ``file.tell()`` is the end of the records so far.

    Raises
    ------
    DamagedError
        If a header or a payload does not have its checksum.
    """
    while True:
        start = file.tell()
        head = file.read(_HEADER.size + _CHECK.size)
        if len(head) < _HEADER.size + _CHECK.size:
            break
        mark, length, checksum = _HEADER.unpack_from(head)
        (check,) = _CHECK.unpack_from(head, _HEADER.size)
        if mark != _MARK or check != zlib.crc32(head[: _HEADER.size]):
            raise DamagedError(start)
        payload = file.read(length)
        if len(payload) < length:
            break
        if hashlib.blake2b(payload, digest_size=16).digest() != checksum:
            raise DamagedError(start)
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


def sole_record(content: bytes) -> bytes:
    """Return the payload of a file with one record, or a pickle that has no checksum.

    Examples
    --------
    >>> sole_record(record(b"state"))
    b'state'
    """
    if is_plain(content):
        return content
    file = io.BytesIO(content)
    payloads = list(read_records(file))
    if len(payloads) != 1 or file.tell() < len(content):
        raise DamagedError(0)
    return payloads[0]
