"""Group commit: run concurrent writes in one transaction.

A durable commit takes one to ten milliseconds. All waiting writes run in one transaction, and their
callers resume after its commit. Under load many answers share one commit; without load each answer
is committed at once.

SQLite statements take microseconds, less than a switch between threads, so they run in the event
loop. A thread that writes continuously would also starve the worker's writes, because SQLite has no
fair queue. PostgreSQL statements run in a thread, and so do SQLite statements while another process
holds the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection

from accelerando.crowd.store import Store
from accelerando.crowd.store.errors import ApiError, classify
from accelerando.crowd.store.experiments import forget

__all__ = ["GroupCommit"]

Result = TypeVar("Result")
_MOST = 128
# After a refusal, this many transactions put each of their writes into a savepoint.
_WARY_FOR = 64
# Each failed lock has taken seconds. After two of them the rest of a batch is not tried.
_MOST_LOCKED = 2


@dataclass
class _Write:
    """A function to run in a transaction, and the future of its result."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


_Queue: TypeAlias = "queue.SimpleQueue[_Write | None]"


class GroupCommit:
    """Run the writes of this process in shared transactions.

    Parameters
    ----------
    store : Store

    Examples
    --------
    >>> import tempfile
    >>> from sqlalchemy import text
    >>> store = Store(f"sqlite:///{tempfile.mkdtemp()}/crowd.sqlite")
    >>> writer = GroupCommit(store)
    >>> async def ask():
    ...     return await writer.run(lambda rows: rows.execute(text("SELECT 7")).scalar())
    >>> asyncio.run(ask())
    7
    >>> writer.close(); store.close()
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: _Queue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: list[_Write] = []
        self._n_queued = 0
        self._lock = threading.Lock()
        self._wary = 0
        self.batches = 0

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run ``function(connection, *arguments)`` in a transaction; return after its commit."""
        loop = asyncio.get_running_loop()
        write = _Write(function, arguments, loop, loop.create_future())
        if self._store.is_sqlite and not self._n_queued:
            self._waiting.append(write)
            if len(self._waiting) == 1:
                loop.call_soon(self._run_in_loop)
        else:
            self._queue_for_thread([write])
        result: Result = await write.future
        return result

    def _run_in_loop(self) -> None:
        writes, self._waiting = self._waiting, []
        self.batches += 1
        self._run_batch(writes, patient=False)

    def _queue_for_thread(self, writes: list[_Write]) -> None:
        """Queue the writes for the thread, which may block."""
        with self._lock:
            if self._thread is None:
                self._queue = queue.SimpleQueue()
                self._thread = threading.Thread(
                    target=self._run_in_thread, args=(self._queue,), name="writer", daemon=True
                )
                self._thread.start()
            self._n_queued += len(writes)
            for write in writes:
                self._queue.put(write)

    def close(self) -> None:
        """Finish the queued writes and stop the thread; a later write starts a new one."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._queue.put(None)
        # Without the lock, which the thread needs to finish.
        if thread is not None:
            thread.join()

    def _run_in_thread(self, waiting: _Queue) -> None:
        while True:
            write = waiting.get()
            if write is None:
                return
            writes = [write]
            while len(writes) < _MOST:
                try:
                    more = waiting.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    waiting.put(None)
                    break
                writes.append(more)
            self.batches += 1
            self._run_batch(writes, patient=True)

    def _run_batch(self, writes: list[_Write], *, patient: bool) -> Exception | None:
        """Run the writes in one transaction and resolve them; return the error of a single one."""
        # Savepoints are a third of the statements, and refusals are rare: the first one costs a
        # second try of its batch. A write alone needs none, because its transaction is rolled back.
        wary = len(writes) > 1 and self._wary > 0
        run = _run_in_savepoint if wary else _run
        self._wary -= wary
        try:
            with self._store.write(patient=patient) as connection:
                done = [(write, *run(write, connection)) for write in writes]
        except _RefusedError as refused:
            if len(writes) == 1:
                self._resolve_batch([(writes[0], None, refused.error)], patient)
            else:
                self._wary = _WARY_FOR
                self._run_batch(writes, patient=patient)
            return None
        except Exception as error:
            locked = classify(error) == "locked"
            if not patient and locked:
                self._queue_for_thread(writes)
                return None
            # A write or the commit failed, so nothing of this batch is stored. Run the writes one
            # by one, so that only the failing one raises. SQLite has one lock for all of them.
            if len(writes) > 1 and not (locked and self._store.is_sqlite):
                self._run_one_by_one(writes, patient)
            else:
                self._resolve_batch([(write, None, error) for write in writes], patient)
            return error
        self._resolve_batch(done, patient)
        return None

    def _run_one_by_one(self, writes: list[_Write], patient: bool) -> None:
        locked = 0
        for place, write in enumerate(writes):
            error = self._run_batch([write], patient=patient)
            locked += error is not None and classify(error) == "locked"
            if locked == _MOST_LOCKED:
                rest = writes[place + 1 :]
                self._resolve_batch([(other, None, error) for other in rest], patient)
                return

    def _resolve_batch(
        self, done: list[tuple[_Write, Any, Exception | None]], patient: bool
    ) -> None:
        # The count falls first: a caller that resumes and writes again finds the thread idle.
        if patient:
            with self._lock:
                self._n_queued -= len(done)
        _resolve_all(done)


def _resolve_all(done: list[tuple[_Write, Any, Exception | None]]) -> None:
    """Resolve the futures with one call per event loop, because waking a loop is expensive."""
    for loop in {id(write.loop): write.loop for write, _, _ in done}.values():
        mine = [entry for entry in done if entry[0].loop is loop]
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(done: list[tuple[_Write, Any, Exception | None]]) -> None:
    for write, result, error in done:
        if write.future.done():
            continue  # the caller was canceled; the write is stored
        if error is None:
            write.future.set_result(result)
        else:
            write.future.set_exception(error)


class _RefusedError(Exception):
    """Rolls back the transaction of a write that was refused."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


def _run(write: _Write, connection: Connection) -> tuple[Any, None]:
    """Run a write; if it is refused, nothing of its transaction may be committed."""
    try:
        return write.function(connection, *write.arguments), None
    except ApiError as error:
        raise _RefusedError(error) from error


def _run_in_savepoint(write: _Write, connection: Connection) -> tuple[Any, Exception | None]:
    """Run a write in a savepoint: a refused request leaves nothing in the shared transaction."""
    _execute(connection, "SAVEPOINT request")
    try:
        result = write.function(connection, *write.arguments)
    except ApiError as error:
        _execute(connection, "ROLLBACK TO SAVEPOINT request")
        _execute(connection, "RELEASE SAVEPOINT request")
        forget(connection)
        return None, error
    _execute(connection, "RELEASE SAVEPOINT request")
    return result, None


def _execute(connection: Connection, statement: str) -> None:
    """Execute a statement without a result.

    SQLite takes a microsecond for a savepoint and SQLAlchemy twenty times as long, twice per
    request: an eighth of the time of an answer.
    """
    if connection.dialect.name == "sqlite":
        with contextlib.suppress(sqlite3.Error):
            connection.connection.cursor().execute(statement)
            return
    connection.exec_driver_sql(statement)  # its errors are those of SQLAlchemy
