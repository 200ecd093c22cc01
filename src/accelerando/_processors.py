"""Number of processors that this process may use."""

from __future__ import annotations

import os


def processors() -> int:
    """Return their number; fewer than the machine has where a container or a user says so.

    Examples
    --------
    >>> processors() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
