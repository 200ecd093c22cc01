"""Messages of encoded tensors: what one rank sends to another at once.

A message is a header, the lengths of its payloads, and the payloads. The header says which codec
its rank has chosen and how long its messages to all ranks are, so that every rank knows the lengths
of all of them.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from accelerando.exceptions import ClusterError, PayloadError

if TYPE_CHECKING:
    from accelerando.compress import Compressor

_FIXED = struct.Struct("<4sI")  # magic, number of the codec
_MAGIC = b"ACLN"


class Header(NamedTuple):
    """What every rank says of its messages.

    Attributes
    ----------
    codec : int
        See :func:`number_of`.
    lengths : tuple of int
        Of its messages to each rank, headers included.
    """

    codec: int
    lengths: tuple[int, ...]


def header_bytes(size: int) -> int:
    """Return the length of the header of one of `size` ranks.

    Examples
    --------
    >>> header_bytes(4)
    40
    """
    return _FIXED.size + 8 * size


def number_of(codec: Compressor) -> int:
    """Return a number that differs if the settings of codecs differ."""
    return zlib.crc32(re.sub(r" at 0x\w+", "", repr(codec)).encode())


def with_headers(codec: int, contents: Sequence[bytes]) -> list[bytes]:
    """Return a rank's messages to all ranks."""
    size = len(contents)
    lengths = [header_bytes(size) + len(content) for content in contents]
    header = _FIXED.pack(_MAGIC, codec) + struct.pack(f"<{size}Q", *lengths)
    return [header + content for content in contents]


def headers_of(messages: Sequence[bytes]) -> list[Header]:
    """Read the headers of the messages of all ranks.

    Raises
    ------
    PayloadError
        If a message does not begin with a header.
    ClusterError
        If ranks have chosen different codecs.
    """
    found = []
    for message in messages:
        magic, codec = _FIXED.unpack_from(message)
        if magic != _MAGIC:
            raise PayloadError(f"A rank's message begins with {magic!r}; it is damaged.")
        found.append(Header(codec, struct.unpack_from(f"<{len(messages)}Q", message, _FIXED.size)))
    if len({header.codec for header in found}) > 1:
        raise ClusterError(
            "Ranks have chosen different codecs for the same update. The rule of Adaptive must "
            "depend on its signals only: no clock, no random numbers, no files, no global "
            "variables."
        )
    return found


def join(payloads: Sequence[bytes]) -> bytes:
    """Return the content of a message.

    Examples
    --------
    >>> [bytes(one) for one in payloads_of(join([b"ab", b"", b"c"]))]
    [b'ab', b'', b'c']
    """
    lengths = struct.pack(f"<{1 + len(payloads)}Q", len(payloads), *map(len, payloads))
    return b"".join([lengths, *payloads])


def payloads_of(content: bytes) -> list[memoryview]:
    """Return the payloads of a message's content."""
    (count,) = struct.unpack_from("<Q", content)
    lengths = struct.unpack_from(f"<{count}Q", content, 8)
    view, at = memoryview(content), 8 + 8 * count
    found = []
    for length in lengths:
        found.append(view[at : at + length])
        at += length
    return found
