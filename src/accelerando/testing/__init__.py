"""Faults for tests: of a disk, a power supply, a database, a worker and a clock.

Each fault happens at the n-th step of an operation, and :func:`every_fault` runs an operation with
a fault at every step until it succeeds.
"""

import importlib
from typing import TYPE_CHECKING, Any

from accelerando._extras import require

if TYPE_CHECKING:
    from accelerando.testing._clock import ClockJump
    from accelerando.testing._database import ConnectionFault
    from accelerando.testing._disk import DiskFault
    from accelerando.testing._power import PowerCut
    from accelerando.testing._sweep import every_fault
    from accelerando.testing._worker import WorkerDeath

__all__ = [
    "ClockJump",
    "ConnectionFault",
    "DiskFault",
    "PowerCut",
    "WorkerDeath",
    "every_fault",
]
_WHERE = {
    "ClockJump": "_clock",
    "ConnectionFault": "_database",
    "DiskFault": "_disk",
    "PowerCut": "_power",
    "WorkerDeath": "_worker",
    "every_fault": "_sweep",
}


def __getattr__(name: str) -> Any:
    """Import a fault when it is asked for: each needs other packages."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "ConnectionFault":
        require("crowd", "accelerando.testing.ConnectionFault", "sqlalchemy")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
