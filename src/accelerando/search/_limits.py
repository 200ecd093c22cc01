"""Limits of a search while it waits for Dask: for data before training, and for the refit after."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import Client, Future, wait

from accelerando._engine.runtime.process import Interrupt
from accelerando._validation import check, parameter_error

__all__ = [
    "Limits",
    "compute",
    "current",
    "limit_seconds",
    "no_limit",
    "results_of",
    "where_models_load",
]

CANCEL_AGAIN = (0.5, 2.0, 10.0)  # seconds after the first time
POLL_SECONDS = 0.2  # between two looks at the limits
UNITS = {"min": "minutes", "sec": "seconds", "hr": "hours"}


def no_limit() -> None:
    """Never end a wait."""


class Limits:
    """The time limit of a search, and the request to stop it.

    Parameters
    ----------
    search : search
        Has the parameters ``max_seconds`` and ``max_time``.
    """

    def __init__(self, search: Any) -> None:
        self.search = search
        self.stop_requested = threading.Event()
        self.interrupt = Interrupt()
        self.restart()

    def restart(self) -> None:
        """Start the clock again."""
        self.began = time.monotonic()

    def stopped(self) -> bool:
        """Return True if the user has asked for the end of the search."""
        return self.interrupt.pending or self.stop_requested.is_set()

    def over(self) -> bool:
        """Return True if the search must end."""
        return self.reason() is not None

    def reason(self) -> str | None:
        """Return why the search must end; None if it may continue."""
        if self.stopped():
            return "stopped"
        seconds = limit_seconds(self.search)
        over = seconds is not None and time.monotonic() - self.began >= seconds
        return "max_seconds" if over else None

    def check(self) -> None:
        """Raise if the search must end before it has trained anything."""
        if reason := self.reason():
            raise ValueError(
                f"The search ended ({reason}) before a model was scored: it was waiting for the "
                "cluster to compute its data."
            )


def limit_seconds(search: Any) -> float | None:
    """Return the time limit of a search, from ``max_seconds`` or ``max_time``."""
    if search.max_time is None:
        limit: float | None = search.max_seconds
        return limit
    if search.max_seconds is not None:
        raise ValueError("max_time and max_seconds are the same limit; pass only one of them.")
    allowed = "a positive number of seconds, a timedelta, or a time such as '10 min'"
    given = search.max_time
    if isinstance(given, str):  # Dask knows "m" and "minutes", but not "min"
        given = re.sub(r"(?<![a-z])(min|sec|hr)s?$", lambda unit: UNITS[unit[1]], given.strip())
    try:
        seconds = float(parse_timedelta(given))
    except (TypeError, ValueError, KeyError):
        raise parameter_error(search, "max_time", allowed, search.max_time) from None
    check(seconds > 0, search, "max_time", allowed, search.max_time)
    return seconds


def current(client: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a block in which `client`, if it is one, computes Dask collections.

    What it has persisted no other client can compute, and a client need not be the default one.
    """
    usable = isinstance(client, Client) and client.status == "running"
    return client.as_current() if usable else contextlib.nullcontext()


def compute(*values: Any, check: Callable[[], None] = no_limit) -> tuple[Any, ...]:
    """Compute Dask collections, as ``dask.compute`` does.

    Parameters
    ----------
    *values : object
        Values that are no collections are returned as they are.
    check : callable
        Called while a cluster computes; what it raises ends the wait.
    """
    client = _current_client()
    if client is None or not any(map(dask.is_dask_collection, values)):
        return tuple(dask.compute(*values))
    lazy = [value for value in values if dask.is_dask_collection(value)]
    computed = iter(results_of(client.compute(lazy), client, check))
    return tuple(next(computed) if dask.is_dask_collection(value) else value for value in values)


def where_models_load() -> dict[str, Any]:
    """Return arguments of ``compute`` that keep tasks away from workers without our packages.

    They are for the client that computes Dask collections now, and empty if there is none.
    """
    client = _current_client()
    if client is None or client.asynchronous:
        return {}
    from accelerando._cluster.driver.chunks import where_ranks_can_be  # imports PyTorch

    return where_ranks_can_be(client) or {}


def _current_client() -> Client | None:
    client = getattr(dask.base.get_scheduler(), "__self__", None)
    return client if isinstance(client, Client) else None


def results_of(futures: Sequence[Future], client: Client, check: Callable[[], None]) -> list[Any]:
    """Return the results of tasks; cancel the tasks if `check` raises or the user interrupts."""
    try:
        while True:
            try:
                with client.as_current():  # wait knows only the current or the default client
                    wait(list(futures), timeout=POLL_SECONDS)
                return list(client.gather(list(futures)))
            except TimeoutError:
                check()
    except BaseException:
        _cancel(list(futures), client)
        raise


def _cancel(futures: list[Future], client: Client) -> None:
    """Cancel tasks, also those whose graph the scheduler has not read yet.

    Dask reads graphs in a thread, and a message to cancel tasks that it does not know is ignored.
    So they are cancelled again later, unless somebody computes the same data meanwhile.
    """
    client.cancel(futures)

    def again() -> Any:
        stale = [future for future in futures if future.key not in client.futures]
        usable = stale and client.status == "running"
        return client.cancel(stale, asynchronous=True) if usable else None

    for seconds in CANCEL_AGAIN:
        client.loop.add_callback(client.loop.call_later, seconds, again)
