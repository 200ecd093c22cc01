"""The workers that a search has at this moment, and those that it would like to have."""

from __future__ import annotations

import math
import time
import uuid
import warnings
from collections.abc import Callable
from typing import Any

from distributed import Client, Future

from accelerando._dask import has_given_up, replace_lost_workers, show_demand, workers_of
from accelerando.exceptions import ClusterError

__all__ = ["Roster", "fit_workers", "result_of"]

REFRESH_SECONDS = 1.0  # between two requests for the list of workers, and two demands
REPLACE_SECONDS = 3.0  # between two requests for workers that the cluster has given up
MEMORY_SHARE = 0.1  # of a worker's memory that the blocks of one task may take
MOST_BYTES = 2.0**30
GRACE_SECONDS = 10.0  # to bring the best model here after the search has ended
WARN_SECONDS = 30.0  # without any worker before the user is warned
UNFIT_SECONDS = 300.0  # after which a search gives up whose cluster has only unfit workers
POLL_SECONDS = 0.2  # between two looks for the first worker


def result_of(future: Future, ended: Callable[[], bool], roster: Roster) -> Any:
    """Return the result of a task; None if it is lost, or the search ended and no one has it.

    This is the only place that waits for a task, and it honors the limits of the search.

    Parameters
    ----------
    future : Future
        The task.
    ended : callable
        Returns True if the search has reached a limit or was asked to stop.
    roster : Roster
        The workers.
    """
    deadline = math.inf
    while True:
        try:
            return future.result(timeout=0.5)
        except TimeoutError:
            if has_given_up(roster.client):
                return None
            if not ended():
                continue
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            roster.refresh()
            if not roster.threads or time.monotonic() > deadline:
                future.cancel()
                return None
        except Exception:  # lost with its worker: KilledWorker, cancelled …
            return None


def fit_workers(client: Client, check: Callable[[], None]) -> dict[str, Any]:
    """Return arguments for Dask that keep tasks away from workers without our packages.

    Wait for the first worker that fits. Others could not load the tasks and would leave the
    cluster, which somebody else may use, too.

    Parameters
    ----------
    client : Client
        The cluster.
    check : callable
        Raises if the search must end.
    """
    roster = Roster(client, f"accelerando-data-{uuid.uuid4().hex[:12]}")
    try:
        while not roster.threads:
            check()
            roster.want(1)  # adaptive clusters start a worker
            time.sleep(POLL_SECONDS)
    finally:
        roster.want(0)
    return {"workers": list(roster.threads), "allow_other_workers": True}


def _warn(event: str, text: str) -> None:
    warnings.warn(text, stacklevel=2)


class Roster:
    """The workers of a cluster that may gain and lose workers, and that can run a task of ours.

    Parameters
    ----------
    client : Client
        The cluster.
    topic : str
        Name of the search.

    Attributes
    ----------
    threads : dict
        The number of threads of each worker, by address.
    facts : dict
        What the scheduler knows about each worker.
    task_bytes : float
        Bytes of data that a task may ask for: a share of the memory of a worker's thread.
    """

    def __init__(self, client: Client, topic: str) -> None:
        self.client = client
        self.topic = topic
        from accelerando._cluster.rank_task import Candidates  # imports PyTorch: not on workers

        self.candidates = Candidates(client, _warn)
        self.threads: dict[str, int] = {}
        self.facts: dict[str, Any] = {}
        self.task_bytes = MOST_BYTES
        self._wanted = 0
        self._shown_at = -math.inf
        self._present_at = self._replaced_at = self._began = time.monotonic()
        self._used = False  # whether there has been a worker
        self._refreshed = -math.inf
        self.refresh()

    def refresh(self, force: bool = False) -> None:
        """Update the list of workers, unless it is recent."""
        now = time.monotonic()
        if not force and now - self._refreshed <= REFRESH_SECONDS:
            return
        known = workers_of(self.client)
        if has_given_up(self.client):  # maybe while it was asked, and then it knows no workers
            raise ClusterError("The scheduler is gone.")  # the search says more about it
        # What Dask has paused while it trains continues when its memory is free again.
        fit = self.candidates.among(known, occupied=self.threads)
        self.facts = {worker: known[worker] for worker in fit}
        self.threads = {a: worker["nthreads"] for a, worker in self.facts.items()}
        memory = [
            facts["memory_limit"] / facts["nthreads"]
            for facts in self.facts.values()
            if facts.get("memory_limit")
        ]
        self.task_bytes = min(MEMORY_SHARE * min(memory, default=math.inf), MOST_BYTES)
        self._refreshed = now
        if now - self._replaced_at > REPLACE_SECONDS:
            self._replaced_at = now
            replace_lost_workers(self.client, len(known))
        self._used = self._used or bool(fit)
        if known and not self._used and now - self._began > UNFIT_SECONDS:
            raise ClusterError(
                f"No worker of the cluster can be used for a search, after {UNFIT_SECONDS:.0f} s."
                f"{self._unused()}"
            )
        if self.threads:
            self._present_at = now
        elif now - self._present_at > WARN_SECONDS:
            self._present_at = math.inf
            warnings.warn(
                f"The cluster has had no worker for {WARN_SECONDS:.0f} seconds. The search "
                f"continues when there is one. Press Ctrl-C to end it.{self._unused()}",
                stacklevel=2,
            )

    def _unused(self) -> str:
        from accelerando._cluster.remarks import unused  # imports PyTorch

        return "".join(f" {sentence}" for sentence in unused(self.candidates))

    def want(self, n_jobs: int) -> None:
        """Show the scheduler how many workers `n_jobs` jobs could use.

        A lower number is shown if workers would be idle, or if it has halved; the number falls with
        every model that ends, and each message costs time here and on the scheduler.
        """
        self.refresh()
        wanted = min(1, n_jobs)  # one, whose threads then tell how many jobs a worker can do
        if self.threads:
            wanted = math.ceil(n_jobs * len(self.threads) / sum(self.threads.values()))
        now = time.monotonic()
        fallen = wanted < len(self.threads) or wanted <= self._wanted / 2
        fallen = fallen and now - self._shown_at > REFRESH_SECONDS
        if wanted > self._wanted or (wanted < self._wanted and (fallen or not wanted)):
            self._wanted, self._shown_at = wanted, now
            show_demand(self.client, self.topic, wanted)
