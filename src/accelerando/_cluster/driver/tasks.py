"""The Dask tasks in which ranks live: submit, watch, cancel."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, NoReturn

import cloudpickle

from accelerando._cluster.driver.placement import place
from accelerando._cluster.job import ClusterJob, RankSpec
from accelerando._cluster.mailbox import Address
from accelerando._cluster.messages import RankId, TaskEnd
from accelerando._cluster.worker.task import serve

log = logging.getLogger("accelerando")

_EXCEPTION_SECONDS = 30.0


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

    def log(self, event: str, text: str) -> None:
        """Append a line to ``world_log_``."""
        self.job.log.append({"time": time.time(), "event": event, "text": text})
        log.info("%s", text)
        if self.job.verbose:
            print(text)

    # -- start and end ----------------------------------------------------------------------------

    def start(self, rank: RankId, worker: str) -> bool:
        """Submit the task of a rank; return False if the data cannot be sent."""
        client = self.job.client
        # What was on no other worker is gone with the last worker that had it.
        if not self._data or any(future.status != "finished" for future in self._data):
            again = bool(self._data) or self._resent
            try:
                data = place(client, self.job.content, self.job.owners, again=again)
                self._data = [client.scatter(self._spec, hash=False), data]
            except (OSError, TimeoutError):  # the worker that was to receive them left
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
        host, port = self.address
        return f"{error}. It has to reach {host}:{port}, and the other workers."

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
