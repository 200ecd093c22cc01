"""Keep glibc from giving memory back to the system between two updates.

Every update frees and asks for the same large tensors. Above its thresholds glibc returns such
memory to the kernel each time, and the next update pays for it in page faults: up to half of the
time of a convolutional net. While training, the thresholds are raised; afterwards they become what
glibc's own adaptation would have made them after one large free, and the memory is given back.
"""

from __future__ import annotations

import ctypes
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt's parameter numbers
_WHILE_TRAINING = 1 << 30
_AFTERWARDS = 32 << 20
_WORTH_TRIMMING = 1.0  # seconds; a search makes thousands of short fits, each reusing the memory

_lock = threading.Lock()
_users = 0
_limited = False


@cache
def _glibc() -> Any | None:
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if library.mallopt and library.malloc_trim else None
    except (OSError, AttributeError):
        return None


@contextmanager
def steady_memory(*, one_arena: bool = False) -> Iterator[None]:
    """Hold on to freed memory inside; does nothing where there is no glibc.

    The setting belongs to the whole process, so nested and concurrent uses are counted.

    Parameters
    ----------
    one_arena : bool
        Let threads that are started inside allocate where the main thread does: training in a
        thread with an arena of its own is a tenth slower.
    """
    global _users, _limited  # noqa: PLW0603  the settings they tell of are global, too
    glibc = _glibc()
    if glibc is None:
        yield
        return
    with _lock:
        _users += 1
        if _users == 1:
            glibc.mallopt(_TRIM_THRESHOLD, _WHILE_TRAINING)
            if not glibc.mallopt(_MMAP_THRESHOLD, _WHILE_TRAINING):  # some allow no more than this
                glibc.mallopt(_MMAP_THRESHOLD, _AFTERWARDS)
        if one_arena and not _limited:
            _limited = True
            glibc.mallopt(_ARENA_MAX, 1)
    began = time.monotonic()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                glibc.mallopt(_TRIM_THRESHOLD, 2 * _AFTERWARDS)
                glibc.mallopt(_MMAP_THRESHOLD, _AFTERWARDS)
                if _limited:
                    _limited = False
                    glibc.mallopt(_ARENA_MAX, 0)  # as many as glibc likes
                if time.monotonic() - began > _WORTH_TRIMMING:
                    glibc.malloc_trim(0)
