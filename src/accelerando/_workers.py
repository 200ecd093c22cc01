"""Who is on a Dask cluster just now."""

from __future__ import annotations

from typing import Any


def workers_of(client: Any) -> dict[str, Any]:
    """Return all workers by address, with what the scheduler tells about each.

    ``client.scheduler_info(n_workers=-1)`` asks for the same, but returns what the client noted
    last. Every other second it notes an answer without workers, and if that comes between the
    question and the return, the cluster seems to be empty.
    """
    if client.scheduler is not None:
        try:
            answer: dict[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)
        except OSError:  # the scheduler is out of reach: what was known last has to do
            pass
        else:
            return dict(answer["workers"])
    return dict(client.scheduler_info(n_workers=-1)["workers"])
