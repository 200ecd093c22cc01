"""Training on the workers of a Dask cluster.

The state of a model is the result of the task that trained it last. It stays on that worker, and
Dask moves and spills it like any other result. A task trains a copy of its inputs, so that a task
that Dask runs twice gives the same state twice. The driver does not wait for results: a task sends
its reports as an event, which takes one message.

If a worker dies, its models continue from a copy on another worker, or start again at the first
call.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import socket
import time
import uuid
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
from distributed import Client, Future

from accelerando._dask import stop_listening, workers_of
from accelerando.search._copies import StateCopies, StateLocation
from accelerando.search._data import Data
from accelerando.search._placement import Placement, WorkerData
from accelerando.search._task import (
    TaskContext,
    TaskResult,
    ignore_interrupts,
    pickle_of,
    reports_of,
    restore_interrupts,
    run_task,
    state_of,
)
from accelerando.search._train import Report, Slice, State, TrainingSpec

__all__ = ["DaskWorkers"]

PREFETCH_SECONDS = 0.05  # a worker receives its next task this long before the current one ends
REFRESH_SECONDS = 1.0  # between two requests for the list of workers
WARN_SECONDS = 30.0  # without any worker before the user is warned
EVENT_SECONDS = 2.0  # a finished task without an event for this long has lost it
MAX_LOSSES = 3  # a model whose task is lost this often is considered the cause


@dataclass
class Task:
    """A task that was submitted to the cluster."""

    number: int
    slices: Sequence[Slice]
    future: Future
    worker: str
    seconds: float  # estimated duration
    begun: float  # when it was submitted, or when the previous task of its thread ended
    finished_at: float | None = None


class DaskWorkers:
    """Workers of a search on a Dask cluster. See :class:`Workers` for the methods.

    Parameters
    ----------
    client : Client
        The cluster. It may gain and lose workers during the search.
    spec : TrainingSpec
        Settings of the search.
    data : Data
        Placed on each worker once.
    """

    min_task_seconds = 0.1  # so that the few milliseconds per task do not matter

    def __init__(self, client: Client, spec: TrainingSpec, data: Data) -> None:
        self.client = client
        self.topic = f"accelerando-search-{uuid.uuid4().hex[:12]}"
        self.placement = Placement(client, TaskContext(spec, data.locations, self.topic), data)
        self.tasks: dict[int, Task] = {}
        self.states: dict[int, StateLocation] = {}
        self.copies = StateCopies(client)
        self.losses: dict[int, int] = {}  # model -> how often its task was lost
        self.count = 0
        self.events: queue.SimpleQueue[tuple[int, str, bytes]] = queue.SimpleQueue()
        self.threads: dict[str, int] = {}  # worker -> its number of threads
        self._refreshed = -math.inf
        self._refresh()
        client.subscribe_topic(self.topic, self._on_event)
        client.run(ignore_interrupts, os.getpgid(0), socket.gethostname())
        self._choose_worker()  # waits until there is a worker
        for worker in self.threads:
            self.placement.on(worker)

    # ---- choice of a worker ------------------------------------------------------------------

    @property
    def n_slots(self) -> int:
        """Number of tasks that can run at a time: the threads of all workers."""
        return max(1, sum(self.threads.values()))

    @property
    def free_slots(self) -> int:
        """Number of tasks that can be submitted now."""
        self._refresh()
        return sum(self._has_room(worker) for worker in self.threads)

    @property
    def busy(self) -> bool:
        """Whether a task is unfinished."""
        return bool(self.tasks)

    def _refresh(self, force: bool = False) -> None:
        """Update the list of workers, unless it is recent."""
        if force or time.monotonic() - self._refreshed > REFRESH_SECONDS:
            workers = workers_of(self.client)
            self.threads = {a: worker["nthreads"] for a, worker in workers.items()}
            self._refreshed = time.monotonic()

    def _has_room(self, worker: str) -> bool:
        return self._until_room(worker) <= 0

    def _until_room(self, worker: str) -> float:
        """Return the seconds until a worker should receive a task."""
        running = [task for task in self.tasks.values() if task.worker == worker]
        threads = self.threads.get(worker, 0)
        if len(running) < threads:
            return 0.0
        if len(running) > threads:
            return math.inf
        ends = sorted(task.begun + task.seconds for task in running)
        return ends[0] - time.monotonic() - PREFETCH_SECONDS if ends else math.inf

    def _choose_worker(self, preferred: str | None = None) -> str:
        """Return `preferred`, which holds the model, or the worker with the lowest load."""
        since = time.monotonic()
        while not self.threads:  # a nanny restarts a worker
            time.sleep(0.1)
            self._refresh(force=True)
            if time.monotonic() - since > WARN_SECONDS:
                warnings.warn(
                    f"The cluster has had no worker for {WARN_SECONDS:.0f} seconds. The search "
                    "continues when there is one. Press Ctrl-C twice to end it.",
                    stacklevel=2,
                )
                since = math.inf
        if preferred is not None and self._has_room(preferred):
            return preferred
        load = dict.fromkeys(self.threads, 0)
        for task in self.tasks.values():
            if task.worker in load:
                load[task.worker] += 1
        return min(load, key=lambda worker: load[worker] / self.threads[worker])

    # ---- tasks and reports -------------------------------------------------------------------

    def submit(self, slices: Sequence[Slice], seconds: float = math.inf) -> None:
        """Start a task that trains `slices` in their order, estimated to take `seconds`."""
        self._send(slices, self._choose_worker(self.location(slices[0].model)), seconds)

    def _send(self, slices: Sequence[Slice], worker: str, seconds: float) -> None:
        number = self.count = self.count + 1
        states = [self.states[part.model] for part in slices if part.model in self.states]
        parents = {state.future.key: state.future for state in states}
        calls = (call for part in slices for call in range(self._calls_of(part.model), part.limit))
        worker, data = self._with_data(worker)
        future = self.client.submit(
            run_task,
            data.context,
            number,
            list(slices),
            list(parents.values()),
            {i: data.groups[i] for i in self.placement.groups_for(calls)},
            data.validation,
            key=f"{self.topic}-{number}",
            workers=[worker],
            allow_other_workers=True,
            pure=False,
        )
        self.tasks[number] = Task(number, slices, future, worker, seconds, time.monotonic())

    def _calls_of(self, model: int) -> int:
        return self.states[model].calls if model in self.states else 0

    def _with_data(self, worker: str) -> tuple[str, WorkerData]:
        """Return a worker and its data: `worker`, or another one if it has just died."""
        while True:
            try:
                return worker, self.placement.on(worker)
            except Exception:  # scatter to a dead worker: KeyError, OSError, TimeoutError …
                self._refresh(force=True)
                if worker in self.threads:
                    raise  # the worker is alive, so the error has another cause
                worker = self._choose_worker()

    def _on_event(self, event: tuple[float, Any]) -> None:
        _, message = event
        self.events.put((message["task"], message["worker"], message["reports"]))

    def wait(self, timeout: float) -> list[Report]:
        """Return the reports that have arrived, after waiting up to `timeout` seconds for one.

        The wait ends earlier if a worker needs its next task.
        """
        reports: list[Report] = []
        soon = min(map(self._until_room, self.threads), default=timeout)
        if soon > 0:  # otherwise there was room before, and no task to fill it
            timeout = min(timeout, soon)
        with contextlib.suppress(queue.Empty):
            reports += self._on_reports(*self.events.get(timeout=timeout))
            while True:
                reports += self._on_reports(*self.events.get_nowait())
        for task in list(self.tasks.values()):
            reports += self._check_task(task)
        return reports

    def _on_reports(self, number: int, worker: str, blob: bytes) -> list[Report]:
        task = self.tasks.pop(number, None)
        if task is None:
            return []  # Dask repeated a task whose result was lost; its reports are known
        waiting = [other for other in self.tasks.values() if other.worker == task.worker]
        threads = self.threads.get(task.worker, 0)
        if 0 < threads <= len(waiting):
            waiting[threads - 1].begun = time.monotonic()  # it waited for a thread and has one now
        # The bytes come from our task on our workers, over the client's connection.
        return self._finish(task, worker, cloudpickle.loads(blob))

    def _finish(self, task: Task, worker: str, reports: list[Report]) -> list[Report]:
        for part, report in zip(task.slices, reports, strict=True):
            self.losses.pop(part.model, None)
            if report.error is not None:
                self.states.pop(part.model, None)
            else:
                location = StateLocation(task.future, worker, report.calls)
                self.states[part.model] = location
                self.copies.update(report, location, list(self.threads))
        return reports

    def _check_task(self, task: Task) -> list[Report]:
        """Handle a task that failed, or that finished without an event."""
        status = task.future.status
        if status == "finished":
            now = time.monotonic()
            task.finished_at = task.finished_at or now
            if now - task.finished_at > EVENT_SECONDS:  # the event was lost with a connection
                del self.tasks[task.number]
                reports = self.client.submit(reports_of, task.future, pure=False).result()
                return self._finish(task, task.worker, reports)
        elif status in ("error", "cancelled"):
            del self.tasks[task.number]
            return self._resubmit(task)
        return []

    def _resubmit(self, task: Task) -> list[Report]:
        """Submit a lost task again, from the copies of its models. Return reports of failures."""
        error = _exception(task.future)
        self._refresh(force=True)
        failed = []
        rest = []
        for part in task.slices:
            self.losses[part.model] = self.losses.get(part.model, 0) + 1
            self.location(part.model)  # forgets a state that is lost
            if self.losses[part.model] >= MAX_LOSSES:
                failed.append(Report(part.model, part.start, stopped=True, error=error))
            else:
                rest.append(part)
        for part in rest:  # separately, so that a model that kills workers is alone in its task
            self._send([part], self._choose_worker(), math.inf)
        return failed

    # ---- states ------------------------------------------------------------------------------

    def location(self, model: int) -> str | None:
        """Return the worker that holds the state of `model`; None if the model has no state."""
        state = self.states.get(model)
        if state is None:
            return None
        # "finished" on a worker that was closed regularly: Dask has moved the state
        status = state.future.status
        if status == "finished" or (status == "pending" and state.worker in self.threads):
            return state.worker
        del self.states[model]
        copied = self.copies.pop(model, self.threads)
        if copied is None:
            return None
        self.states[model] = copied
        return copied.worker

    def drop(self, models: Sequence[int]) -> None:
        """Release the states of models that are no longer needed."""
        for model in models:
            self.states.pop(model, None)
            self.copies.drop(model)

    def put(self, model: int, state: State) -> None:
        """Store a state that was read from a checkpoint."""
        worker = self._choose_worker()
        result = TaskResult({model: state}, [])
        (future,) = self.client.scatter([result], workers=[worker], hash=False)
        self.states[model] = StateLocation(future, worker, state.calls)

    def get(self, model: int) -> State | None:
        """Return the state of a model in this process; None if it is lost."""
        state: State | None = self._call(state_of, model)
        return state

    def pickled(self, model: int) -> bytes | None:
        """Return the pickled state of a model for a checkpoint; None if it is lost."""
        blob: bytes | None = self._call(pickle_of, model)
        return blob

    def _call(self, function: Any, model: int) -> Any:
        """Call a function with the state of a model on a worker; None if the state is lost."""
        if self.location(model) is None:
            return None
        future = self.client.submit(function, self.states[model].future, model, pure=False)
        with contextlib.suppress(Exception):  # lost with its worker: KilledWorker, cancelled …
            return future.result()
        return None

    def close(self) -> None:
        """Cancel unfinished tasks and release all results."""
        with contextlib.suppress(Exception):  # the cluster may be gone; then nothing is left
            self.client.cancel([task.future for task in self.tasks.values()], force=True)
            self.client.run(restore_interrupts)
        stop_listening(self.client, self.topic)
        self.tasks.clear()
        self.states.clear()
        self.copies = StateCopies(self.client)
        self.placement.clear()


def _exception(future: Future) -> BaseException:
    if future.status == "error":
        error = future.exception()
        if isinstance(error, BaseException):
            return error
    return RuntimeError(
        f"The worker that trained this model died {MAX_LOSSES} times. The model may need more "
        "memory than the worker has."
    )
