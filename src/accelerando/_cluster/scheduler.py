"""The end of a Dask scheduler: how fits and searches notice it, and what they say."""

from __future__ import annotations

from typing import Any

from accelerando.exceptions import ClusterError


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
