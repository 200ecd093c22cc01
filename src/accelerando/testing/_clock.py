"""A clock that jumps."""

from __future__ import annotations

import time
from contextlib import ExitStack
from unittest import mock


class ClockJump:
    """Let the time of day jump at the n-th time that it is read, as a context manager.

    ``time.time`` and ``time.time_ns`` jump; the monotonic clocks do not. ``datetime.now`` reads the
    clock in C and is not changed.

    Parameters
    ----------
    at : int
        The reading from which on the clock is wrong; the first one is 1.
    seconds : float
        By how much; negative for a clock that is set back.

    Attributes
    ----------
    happened : bool
        Whether the clock was read as many times.

    Examples
    --------
    >>> import time
    >>> from accelerando.testing import ClockJump
    >>> with ClockJump(at=2, seconds=-3600) as jump:
    ...     before, after = time.time(), time.time()
    >>> round((after - before) / 60), jump.happened
    (-60, True)
    """

    def __init__(self, at: int, seconds: float) -> None:
        self.at, self.seconds = at, seconds
        self._n_readings = 0
        self._stack = ExitStack()
        self._time, self._time_ns = time.time, time.time_ns

    @property
    def happened(self) -> bool:
        """Whether the clock has jumped."""
        return self._n_readings >= self.at

    def __enter__(self) -> ClockJump:
        self._stack.enter_context(mock.patch.object(time, "time", self._now))
        self._stack.enter_context(mock.patch.object(time, "time_ns", self._now_ns))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _jump(self) -> float:
        self._n_readings += 1
        return self.seconds if self.happened else 0.0

    def _now(self) -> float:
        return self._time() + self._jump()

    def _now_ns(self) -> int:
        return self._time_ns() + round(self._jump() * 1e9)
