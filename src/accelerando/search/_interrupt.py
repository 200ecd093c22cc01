"""Ctrl-C during a search: the first asks it to stop, the second is an ordinary one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["ask_on_interrupt"]


@contextlib.contextmanager
def ask_on_interrupt(asked: threading.Event) -> Iterator[None]:
    """Set ``asked`` on the first SIGINT instead of raising in the middle of a call.

    Only the main thread may handle signals, and a handler that someone else installed is left
    alone; then SIGINT does what it did before.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or before is not signal.default_int_handler:
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
