"""Let Dask look after its own workers less often while ranks train on them.

A worker wakes up a hundred times a second to profile its tasks, and fifty times to see whether it
still can. Python runs one thread at a time: each time a rank on that worker has to stand aside.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OFTEN = ("profile", "tick")
_MILLISECONDS = 500.0  # Dask itself warns of three seconds in which a worker did not wake up

_lock = threading.Lock()
_users: dict[int, int] = {}  # by the worker
_before: dict[int, dict[str, float]] = {}


@contextmanager
def calm(worker: Any) -> Iterator[None]:
    """Make a worker's most frequent chores rare inside; ranks of several fits are counted."""
    chores = getattr(worker, "periodic_callbacks", {})
    chores = {name: chores[name] for name in _OFTEN if name in chores}
    key = id(worker)
    with _lock:
        _users[key] = _users.get(key, 0) + 1
        if _users[key] == 1:
            _before[key] = {name: chore.callback_time for name, chore in chores.items()}
            for chore in chores.values():
                chore.callback_time = max(chore.callback_time, _MILLISECONDS)
    try:
        yield
    finally:
        with _lock:
            _users[key] -= 1
            if not _users[key]:
                del _users[key]
                for name, milliseconds in _before.pop(key).items():
                    chores[name].callback_time = milliseconds
