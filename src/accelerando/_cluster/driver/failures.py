"""Errors of runs whose scheduler is gone: what is held here, and how to continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelerando._cluster.driver.sizing import plural
from accelerando.exceptions import ClusterError

if TYPE_CHECKING:
    from accelerando._cluster.job import ClusterJob


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


def fit_without_scheduler(job: ClusterJob, address: str, cause: str) -> ClusterError:
    """Return the error that ends a fit whose scheduler is gone."""
    position, folder = job.fit.state.position, job.checkpoint
    remedy = "partial_fit with the client of another cluster continues from it."
    if folder is None:
        remedy += " (checkpoint= would keep it on disk, too.)"
    else:
        remedy += f" In any process, fit with checkpoint={folder!r} continues from its newest file."
    held = (
        f"The estimator holds the state of update {position.update}, after "
        f"{plural(position.epoch, 'whole epoch')}."
    )
    return scheduler_gone(address, cause.rstrip("."), held, remedy)
