"""The long-running Dask task in which a rank lives: the driver's side, and the worker's.

On the driver, :class:`Candidates` finds the workers that can run it, and :class:`RankTasks`
submits, watches and cancels tasks. On a worker, :func:`serve` is the task.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import cloudpickle
import torch
from distributed import get_worker, secede
from distributed.client import ClosedClientError

from accelerando._cluster.address import Address
from accelerando._cluster.driver.placement import Placed, place
from accelerando._cluster.job import ClusterJob, RankSpec
from accelerando._cluster.mailbox import Mailbox, MailboxGone
from accelerando._cluster.messages import RankId, TaskEnd
from accelerando._cluster.remarks import scheduler_cannot_load
from accelerando._cluster.worker.rank import Rank
from accelerando._dask import (
    hide_failed_ranks,
    host_of,
    quiet_worker,
    send_to,
    versions_here,
    versions_of,
)
from accelerando._engine.runtime.process import keep_memory

log = logging.getLogger("accelerando")

_EXCEPTION_SECONDS = 30.0
_ANSWER_SECONDS = 3.0  # for a worker to say which versions it has
_RETRY_SECONDS = 10.0  # until a worker that did not answer is asked again; then twice as long
_RETRY_MOST = 60.0
# What gloo and the system say about the address of another machine.
_NOT_LOCAL = ("to a (local) address", "Cannot assign requested address")
# Events that are not in the normal course of a fit.
_WARNINGS = ("unfit", "min_workers", "differ", "refused", "paused")
PACKAGES = ("accelerando", "torch", "skorch")  # what a rank needs, in the versions of the driver


# -- on the driver ---------------------------------------------------------------------------------


def misfit(here: Mapping[str, str | None], there: Mapping[str, str | None]) -> str | None:
    """Return why a worker with these versions cannot run a rank; None if it can.

    Builds of a version for other devices, such as ``+cpu``, fit.

    Examples
    --------
    >>> misfit({"torch": "2.9.1+cpu"}, {"torch": "2.9.1"})
    >>> misfit({"torch": "2.9.1+cpu"}, {"torch": "2.8.0"})
    'has torch 2.8.0, and this process has 2.9.1'
    >>> misfit({"torch": "2.9.1", "skorch": "1.2"}, {"torch": None, "skorch": None})
    'has no torch, no skorch'
    """
    missing = [name for name in PACKAGES if here.get(name) and not there.get(name)]
    if missing:
        return f"has no {', no '.join(missing)}"
    for name in ("python", *PACKAGES):
        parts = 2 if name == "python" else None
        found, wanted = (
            ".".join((versions.get(name) or "").split("+")[0].split(".")[:parts])
            for versions in (there, here)
        )
        if wanted and found != wanted:
            return (
                f"has {name.capitalize() if parts else name} {found}, and this process has {wanted}"
            )
    return None


class Candidates:
    """The workers of a cluster that can run a rank.

    What is sent to a rank refers to accelerando and PyTorch. A worker that cannot load it would
    leave the cluster, which others may use, too. So each worker is asked for its versions before
    anything is sent.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    log : callable
        Receives an event and a sentence about a worker that cannot be used.
    """

    def __init__(self, client: Any, log: Any) -> None:
        self.client, self.log = client, log
        self.here = versions_here(PACKAGES)
        self.unfit: dict[str, str] = {}
        self.limits: dict[str, int] = {}
        self.facts: Mapping[str, Any] = {}  # of all workers, when they were surveyed last
        self.paused: set[str] = set()
        self._named: set[str] = set()
        self.fit: set[str] = set()
        self.retry_at: dict[str, float] = {}
        self._retries: dict[str, float] = {}

    def among(
        self, workers: Mapping[str, Any], occupied: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """Return the workers that can run a rank.

        A worker that Dask has paused begins no task; one that runs there continues.

        Parameters
        ----------
        workers : mapping
            Facts of the scheduler about each worker, by address.
        occupied : collection of str or None
            Those with a rank, if `workers` are all workers of the cluster.
        """
        now = time.monotonic()
        known = self.fit | self.unfit.keys()
        new = [w for w in workers if w not in known and self.retry_at.get(w, 0.0) <= now]
        found = versions_of(self.client, new, PACKAGES, _ANSWER_SECONDS) if new else {}
        for worker in new:
            self.limits[worker] = int(workers[worker].get("memory_limit") or 0)
            if worker not in found:
                if worker not in self.retry_at:
                    self.log("silent", f"Worker {worker} does not answer and is not used for now.")
                wait = self._retries.get(worker, _RETRY_SECONDS)
                self.retry_at[worker] = time.monotonic() + wait
                self._retries[worker] = min(2 * wait, _RETRY_MOST)
            elif (why := misfit(self.here, found[worker])) is None:
                self.fit.add(worker)
            else:
                self.unfit[worker] = why
                self.log("unfit", f"Worker {worker} {why}. It is not used.")
        paused = {w for w in workers if w in self.fit and workers[w].get("status") == "paused"}
        paused.difference_update(occupied or ())
        if occupied is not None:
            for worker in sorted(paused - self._named):
                limit = f"{self.limits[worker] / 1e6:,.0f} MB"
                text = f"Worker {worker} is paused: its memory limit of {limit} is nearly used up."
                self.log("paused", text)
            self.facts, self.paused, self._named = workers, paused, self._named | paused
        return tuple(w for w in workers if w in self.fit and w not in paused)

    def doubt(self, worker: str) -> None:
        """Ask a worker again before it is used: it has left or hangs."""
        self.fit.discard(worker)


class RankTasks:
    """The tasks of all ranks of a run.

    Parameters
    ----------
    job : ClusterJob
        What to train.
    address : Address
        Of the mailbox.
    run, topic : str
        The name of the run, and of the topic of its progress events.
    """

    def __init__(self, job: ClusterJob, address: Address, run: str, topic: str) -> None:
        self.job, self.address, self.run = job, address, run
        fit = job.fit
        micro = fit.state.micro_batch
        self._spec = cloudpickle.dumps(
            RankSpec(
                builder=job.builder,
                fit=fit.spec,
                feed=job.feed,
                validation=job.validation,
                micro_batch=type(micro)(fixed=micro.fixed, whole=micro.whole, timed=micro.timed),
                topic=topic,
            )
        )
        self._futures: dict[RankId, Any] = {}
        self._data: list[Any] = []  # futures of the spec and of the training data
        self._resent = False

    def announce(self, text: str) -> None:
        """Print a line about the ranks, unless the fit is silent."""
        if self.job.verbose:
            print(text, flush=True)

    def log(self, event: str, text: str) -> None:
        """Append a line to ``world_log_``."""
        self.job.log.append({"time": time.time(), "event": event, "text": text})
        log.log(logging.WARNING if event in _WARNINGS else logging.INFO, "%s", text)
        self.announce(text)

    # -- start and end ----------------------------------------------------------------------------

    def start(self, rank: RankId, worker: str) -> bool:
        """Submit the task of a rank; return False if the data cannot be sent."""
        client = self.job.client
        # What was on no other worker is gone with the last worker that had it.
        if not self._data or any(future.status != "finished" for future in self._data):
            again = bool(self._data) or self._resent
            try:
                data = place(client, self.job.content, self.job.owners, worker, again=again)
                self._data = [send_to(client, self._spec, worker), data]
            except (OSError, TimeoutError, KeyError):  # the worker has left, or hangs
                return False
        self._futures[rank] = client.submit(
            serve,
            *self._data,
            tuple(self.address),
            rank,
            key=f"accelerando-{self.run}-{rank}",
            workers=[worker],
            allow_other_workers=False,
            pure=False,
            retries=0,
            priority=1000,
        )
        return True

    def cancel(self, rank: RankId) -> None:
        """Cancel a task by force; one that is pinned to a dead worker would wait forever."""
        future = self._futures.pop(rank, None)
        if future is not None:
            with contextlib.suppress(ClosedClientError):  # its scheduler is gone, and the task, too
                future.cancel(force=True)

    def wait(self, ranks: Iterable[RankId], seconds: float) -> None:
        """Wait until tasks ended, at most this number of seconds."""
        futures = [self._futures[rank] for rank in ranks if rank in self._futures]
        deadline = time.monotonic() + seconds
        while any(not future.done() for future in futures) and time.monotonic() < deadline:
            time.sleep(0.002)

    def resend_data(self) -> None:
        """Forget the spec and the data on the cluster: the next rank that starts sends them."""
        futures, self._data = self._data, []
        for future in futures:
            future.release()
        self._resent = True

    def close(self) -> None:
        """Cancel what is left, and release the spec. The data stay for the next fit."""
        for rank in list(self._futures):
            self.cancel(rank)
        for future in self._data[:1]:
            future.release()
        self._data = []

    # -- how tasks ended --------------------------------------------------------------------------

    def ended(self) -> dict[RankId, TaskEnd]:
        """Return the tasks that ended although nobody stopped them."""
        found = {}
        for rank, future in self._futures.items():
            if future.status in ("error", "cancelled", "lost", "finished"):
                found[rank] = self._end_of(future)
        return found

    def _end_of(self, future: Any) -> TaskEnd:
        if future.status == "finished":
            return TaskEnd("finished")
        if future.status != "error":
            return TaskEnd("cancelled")
        error = future.exception()
        if type(error).__name__ in ("KilledWorker", "FutureCancelledError"):
            return TaskEnd("killed", self._reason(error))
        if isinstance(error, RuntimeError | OSError):
            return TaskEnd("unreachable", self._reason(error))
        return TaskEnd("raised", str(error))

    def _reason(self, error: BaseException) -> str:
        if said := scheduler_cannot_load(error):
            return said
        if any(text in str(error) for text in _NOT_LOCAL):
            return (
                f"{error}. Ranks listen on the address of their worker, so it has to be one of the "
                "worker's machine, not of a router or a container's host (--contact-address)."
            )
        said = f"{error}. It has to reach {self.address.where}, and the other workers."
        if self.address.is_loopback:
            said += (
                " That address is of this machine only: the client reaches the scheduler through a "
                "tunnel or a proxy, which passes Dask's messages and nothing else. Run the script "
                "on a machine that workers can reach, or that reaches the scheduler directly."
            )
        return said

    def exception_of(self, rank: RankId) -> BaseException | None:
        """Return the exception of a task that failed."""
        future = self._futures.pop(rank, None)
        if future is None:
            return None
        found: BaseException | None = future.exception()
        future.release()
        return found

    def raise_from(self, rank: RankId) -> NoReturn:
        """Raise what the user's code raised on a rank, with the traceback it had there."""
        future = self._futures.pop(rank)
        error = future.exception(timeout=_EXCEPTION_SECONDS)
        traceback = future.traceback()
        future.release()  # the error refers to this frame and would keep the task on the scheduler
        try:
            raise error.with_traceback(traceback)
        finally:
            del error  # which refers to it in turn; the frames below hold the user's arrays


# -- on a worker -----------------------------------------------------------------------------------


def serve(sealed: bytes, data: Placed, address: tuple[Any, ...], rank: RankId) -> None:
    """Be a rank until Stop arrives, or until the mailbox is gone because the driver is.

    Parameters
    ----------
    sealed : bytes
        The pickled :class:`RankSpec`. Dask may share one object among the tasks of a process, and
        a rank changes its own.
    data : Placed
        The training data.
    address : tuple
        The :class:`Address` of the mailbox, which Dask may turn into a plain tuple.
    rank : str
        The name of the rank.
    """
    worker = get_worker()
    hide_failed_ranks()
    secede()  # other tasks, and ranks of other fits, run at the same time
    ended: list[BaseException | None] = []

    def live() -> None:
        try:
            ended.append(_live(cloudpickle.loads(sealed), data, Address(*address), rank, worker))
        except BaseException as error:
            ended.append(error)

    # In a thread that Dask does not know: its profiler would stop a task's thread a hundred times
    # a second to look at the stack, which costs the other ranks as much as this one.
    with keep_memory(one_arena=True):
        thread = threading.Thread(target=live, name=rank, daemon=True)
        thread.start()
        thread.join()
    if ended[0] is not None:
        raise ended[0]


def _live(
    spec: RankSpec, data: Placed, address: Address, rank_id: RankId, worker: Any
) -> BaseException | None:
    with _threads(worker.state.nthreads), quiet_worker(worker):

        def log_event(facts: dict[str, Any]) -> None:
            worker.log_event(spec.topic, facts)

        mailbox = Mailbox(address)
        rank = Rank(spec, data, mailbox, rank_id, host_of(worker.address), log_event)
        try:
            rank.warm_up()
            with contextlib.suppress(MailboxGone):
                rank.run()
        finally:
            rank.close()
    return rank.error


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with as many threads as Dask gave the worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, count))
    try:
        yield
    finally:
        torch.set_num_threads(before)
