"""Ctrl-C that waits for a safe moment."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """Remember the first Ctrl-C until somebody asks; raise the second one at once.

    An interrupt inside ``optimizer.step`` would leave half of the parameters moved, from which no
    later run could continue. The handler is installed in the main thread only, because Python
    allows it nowhere else, and only over Python's own handler, so that a notebook's or a server's
    handler stays in place.

    Attributes
    ----------
    pending : bool
        Whether Ctrl-C was pressed since the block began.

    Examples
    --------
    >>> with Interrupt() as interrupt:
    ...     interrupt.check()
    >>> interrupt.pending
    False
    """

    def __init__(self) -> None:
        self.pending = False
        self._previous: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            current = signal.getsignal(signal.SIGINT)
            if current is signal.default_int_handler:
                self._previous = current
                signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.pending:
            raise KeyboardInterrupt
        self.pending = True

    def check(self) -> None:
        """Raise the interrupt that is pending."""
        if self.pending:
            raise KeyboardInterrupt
