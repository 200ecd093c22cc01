"""Many small writes, few commits.

A commit that is on disk costs a millisecond or ten. All writes that wait are run in one
transaction, which is committed, and only then every caller is told that it is done: under load many
answers share one commit, without load each has its own at once.

Statements to SQLite take microseconds, less than it takes two threads to pass the interpreter to
each other: they are run where the requests are, in the event loop. A thread that writes without a
pause would also keep the worker's writes out, for SQLite has no queue. A server's statements are
waited for in a thread, and so is SQLite when somebody else holds its lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, OperationalError

from accelerando.crowd.store import Store
from accelerando.crowd.store.errors import Refused

__all__ = ["Writer"]

Result = TypeVar("Result")
_MOST = 128


@dataclass
class _Wish:
    """A function to run within a transaction, and who waits for its result."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Writer:
    """The one place of this process that writes.

    Parameters
    ----------
    store : Store

    Examples
    --------
    >>> import tempfile
    >>> from sqlalchemy import text
    >>> store = Store(f"sqlite:///{tempfile.mkdtemp()}/crowd.sqlite")
    >>> writer = Writer(store)
    >>> async def ask():
    ...     return await writer.run(lambda rows: rows.execute(text("SELECT 7")).scalar())
    >>> asyncio.run(ask())
    7
    >>> writer.close(); store.close()
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wishes: queue.SimpleQueue[_Wish | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: list[_Wish] = []
        self._in_thread = 0
        self._lock = threading.Lock()
        self.batches = 0

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """``function(connection, *arguments)`` in a transaction; returns after its commit."""
        loop = asyncio.get_running_loop()
        wish = _Wish(function, arguments, loop, loop.create_future())
        if self._store.is_sqlite and not self._in_thread:
            self._waiting.append(wish)
            if len(self._waiting) == 1:
                loop.call_soon(self._work_here)
        else:
            self._hand_over([wish])
        result: Result = await wish.future
        return result

    def _work_here(self) -> None:
        wishes, self._waiting = self._waiting, []
        self.batches += 1
        self._together(wishes, patient=False)

    def _hand_over(self, wishes: list[_Wish]) -> None:
        """Let the thread do it: it may wait."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
                self._thread.start()
            self._in_thread += len(wishes)
            for wish in wishes:
                self._wishes.put(wish)

    def close(self) -> None:
        """Finish what waits, then stop; whoever comes later starts a new thread."""
        with self._lock:
            if self._thread is not None:
                self._wishes.put(None)
                self._thread.join()
                self._thread = None

    def _work(self) -> None:
        while True:
            wish = self._wishes.get()
            if wish is None:
                return
            wishes = [wish]
            while len(wishes) < _MOST:
                try:
                    more = self._wishes.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    self._wishes.put(None)
                    break
                wishes.append(more)
            self.batches += 1
            self._together(wishes, patient=True)
            with self._lock:
                self._in_thread -= len(wishes)

    def _together(self, wishes: list[_Wish], *, patient: bool) -> None:
        try:
            with self._store.write(patient=patient) as connection:
                done = [(wish, *_run(wish, connection)) for wish in wishes]
        except Exception as error:
            if not patient and is_locked(error):
                self._hand_over(wishes)
                return
            # Somebody's write failed, or the commit: nothing of this batch is on disk. Alone, each
            # gets what it deserves.
            if len(wishes) > 1:
                for wish in wishes:
                    self._together([wish], patient=patient)
            else:
                _tell([(wishes[0], None, error)])
            return
        _tell(done)


def _tell(done: list[tuple[_Wish, Any, Exception | None]]) -> None:
    """Wake those who wait: one call for all of an event loop, for waking it is what costs."""
    for loop in {id(wish.loop): wish.loop for wish, _, _ in done}.values():
        mine = [entry for entry in done if entry[0].loop is loop]
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(done: list[tuple[_Wish, Any, Exception | None]]) -> None:
    for wish, result, error in done:
        if wish.future.done():
            continue  # the caller has gone away; what was written is written
        if error is None:
            wish.future.set_result(result)
        else:
            wish.future.set_exception(error)


def _run(wish: _Wish, connection: Connection) -> tuple[Any, Exception | None]:
    try:
        return wish.function(connection, *wish.arguments), None
    except Refused as refusal:  # raised before anything was written
        return None, refusal


def is_locked(error: Exception) -> bool:
    """Whether somebody else is writing to this SQLite file."""
    return isinstance(error, OperationalError) and "locked" in str(error.orig)


def is_away(error: DBAPIError) -> bool:
    """Whether trying again later may help: disk full, database locked or gone."""
    words = str(error.orig).lower()
    signs = ("disk", "full", "locked", "readonly", "connect", "server closed", "terminat", "i/o")
    return error.connection_invalidated or any(sign in words for sign in signs)
