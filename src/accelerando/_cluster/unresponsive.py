"""Parts of a cluster that do not answer: workers that hang, and a scheduler that is gone.

A call of Dask's client may wait for minutes, or for ever, for a process that hangs or cannot be
reached. Such calls are made in a thread here: the driver waits for them as long as it makes sense.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from accelerando._dask import workers_of
from accelerando.exceptions import ClusterError

_ANSWER_SECONDS = 3.0  # for all workers that can answer
_BEAT_SECONDS = 1.0  # between two looks at heartbeats, which come once or twice a second
_SILENT_SECONDS = 10.0  # without a heartbeat: the worker hangs
_talking: dict[str, threading.Thread] = {}  # the last call about a plugin, until it has ended

# -- the scheduler --------------------------------------------------------------------------------


def has_given_up(client: Any) -> bool:
    """Return True if the client has lost its scheduler, and has not found it again in time."""
    return client.status in ("closed", "closing")


def scheduler_gone(address: str, cause: str, held: str, remedy: str) -> ClusterError:
    """Return the error of a run whose scheduler is gone.

    Examples
    --------
    >>> print(scheduler_gone("tcp://10.0.0.1:8786", "", "Nothing is lost.", "Start another one."))
    The Dask scheduler at tcp://10.0.0.1:8786 is gone. Nothing is lost. Start another one.
    """
    return ClusterError(
        f"The Dask scheduler at {address} is gone{cause and f' ({cause})'}. {held} {remedy}"
    )


# -- workers --------------------------------------------------------------------------------------


class Heartbeats:
    """The newest heartbeat of each worker, and when it was noticed."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[Any, float]] = {}
        self._looked = 0.0

    def missing(self, workers: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the workers whose newest heartbeat is old; call this about once a second.

        Parameters
        ----------
        workers : mapping
            Facts of the scheduler about each worker, by address.
        """
        now = time.monotonic()
        if now - self._looked > _SILENT_SECONDS / 2:  # this process did not look, or hung itself
            self._newest = {}
        self._looked = now
        for worker, facts in workers.items():
            seen = facts.get("last_seen")
            if seen is None or self._newest.get(worker, (None, now))[0] != seen:
                self._newest[worker] = seen, now
        return tuple(w for w in workers if now - self._newest[w][1] > _SILENT_SECONDS)


def send_to(client: Any, content: Any, worker: str) -> Any:
    """Scatter an object to one worker, for which Dask waits; raise ``TimeoutError`` if it hangs."""
    thread, ended = _begin(client.scatter, content, workers=[worker], hash=False)
    silent, before = 0.0, None
    thread.join(_BEAT_SECONDS)
    while thread.is_alive():
        seen = workers_of(client).get(worker, {}).get("last_seen")
        silent, before = silent + _BEAT_SECONDS if seen == before else 0.0, seen
        if silent >= _SILENT_SECONDS:
            raise TimeoutError(f"Worker {worker} hangs.")
        thread.join(_BEAT_SECONDS)
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


def ask_all(name: str, function: Any, *arguments: Any, **options: Any) -> None:
    """Call a function of a client that talks to all workers, and do not wait for those that hang.

    The scheduler talks to all at once, waits 30 seconds for a worker that it cannot reach, such as
    one with a wrong ``--interface``, and then raises, although the others have answered. Calls with
    the same `name` take turns: a plugin that is registered late is not removed before.
    """
    before = _talking.get(name)

    def call() -> None:
        if before is not None:
            before.join()
        try:
            function(*arguments, **options)
        finally:
            if _talking.get(name) is threading.current_thread():
                del _talking[name]

    thread, ended = _begin(call)
    thread.join(_ANSWER_SECONDS)
    if thread.is_alive():
        _talking[name] = thread
    if ended and isinstance(ended[0], BaseException) and not isinstance(ended[0], OSError):
        raise ended[0]


def _begin(function: Any, *arguments: Any, **options: Any) -> tuple[threading.Thread, list[Any]]:
    """Call a function in another thread; return it, and a list that gets the result or error."""
    ended: list[Any] = []

    def call() -> None:
        try:
            ended.append(function(*arguments, **options))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=call, name="accelerando-call", daemon=True)
    thread.start()
    return thread, ended
