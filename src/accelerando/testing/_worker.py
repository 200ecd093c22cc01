"""A worker whose process dies at the n-th update, message or collective of its ranks."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from distributed import Client

Place = Literal["update", "message", "collective"]
_POINTS = {
    "update": ("accelerando._cluster.worker.hooks", "RankHooks", "after_update"),
    "message": ("accelerando._cluster.mailbox", "Mailbox", "_push"),
    "collective": ("accelerando._engine.comm.process_group", "ProcessGroup", "contact"),
}


class WorkerDeath:
    """Kill a Dask worker at the n-th step of its rank, as a context manager.

    The process gets SIGKILL, as from the system when memory is short. Its nanny starts another one,
    which lives. The worker must be a process that is not the driver's.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    worker : str
        The address of the worker.
    at : int
        The step at which it dies; the first one is 1.
    place : {"update", "message", "collective"}
        What is counted: updates that are done, messages to the driver, or exchanges between ranks.

    Attributes
    ----------
    happened : bool
        Whether the process has died; known after the block.

    Examples
    --------
    >>> from accelerando.testing import WorkerDeath
    >>> def fit_with_a_death(net, X, y, client):
    ...     worker = next(iter(client.scheduler_info()["workers"]))
    ...     with WorkerDeath(client, worker, at=3) as death:
    ...         net.fit(X, y)
    ...     return death.happened
    """

    def __init__(self, client: Client, worker: str, at: int, place: Place = "update") -> None:
        if place not in _POINTS:
            raise ValueError(
                f"The 'place' parameter of WorkerDeath must be one of {', '.join(_POINTS)}. "
                f"Got {place!r} instead."
            )
        self.client, self.worker, self.at, self.place = client, worker, at, place
        self.happened = False
        self._process = 0

    def __enter__(self) -> WorkerDeath:
        found = self.client.run(_arm, self.place, self.at, os.getpid(), workers=[self.worker])
        self._process = found[self.worker]
        return self

    def __exit__(self, *error: object) -> None:
        found = self.client.run(_disarm, on_error="ignore")
        self.happened = self._process not in found.values()


def _arm(place: Place, at: int, driver: int) -> int:
    """Replace a method in the worker's process; return the number of the process."""
    import importlib

    if os.getpid() == driver:
        raise RuntimeError(
            "WorkerDeath needs a worker in a separate process: LocalCluster(processes=True)."
        )
    module, kind, name = _POINTS[place]
    owner = getattr(importlib.import_module(module), kind)
    method = getattr(owner, name)
    steps = 0

    def counted(*args: Any, **named: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **named)

    _ARMED.append((owner, name, method))
    setattr(owner, name, counted)
    return os.getpid()


_ARMED: list[tuple[type, str, Any]] = []


def _disarm() -> int:
    """Put the methods back; return the number of the process."""
    while _ARMED:
        owner, name, method = _ARMED.pop()
        setattr(owner, name, method)
    return os.getpid()
