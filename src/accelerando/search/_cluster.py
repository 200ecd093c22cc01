"""Training on the workers of a Dask cluster.

The state of a model is the result of the task that trained it last. It stays on that worker, and
Dask moves and spills it like any other result. A task trains a copy of its inputs, so that a task
that Dask runs twice gives the same state twice. The driver does not wait for results: a task sends
its reports as an event, which takes one message.

If a worker dies, its models continue from a copy on another worker, or start again at the first
call. No method waits for a worker: tasks that cannot be sent are kept until there is one, so that
the driver can honor its limits.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
from distributed import Client, Future

from accelerando._cluster.plugins import shielded
from accelerando._cluster.remarks import scheduler_cannot_load
from accelerando._dask import send_to, stop_listening
from accelerando.exceptions import ClusterError
from accelerando.search._copies import StateCopies, StateLocation, submit_beside
from accelerando.search._data import Data
from accelerando.search._losses import LostTasks, Task, error_of, is_loss
from accelerando.search._placement import Placement, WorkerData
from accelerando.search._roster import Roster, result_of
from accelerando.search._task import (
    TaskContext,
    TaskResult,
    pickle_of,
    reports_of,
    run_task,
    state_of,
)
from accelerando.search._train import Report, Slice, State, TrainingSpec

__all__ = ["DaskWorkers"]

PREFETCH_SECONDS = 0.05  # a worker receives its next task this long before the current one ends
EVENT_SECONDS = 2.0  # a finished task without an event for this long has lost it


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
    ended : callable
        Returns True if the search has reached a limit or was asked to stop. Then nothing is
        waited for that may never come.
    """

    min_task_seconds = 0.1  # so that the few milliseconds per task do not matter

    def __init__(
        self,
        client: Client,
        spec: TrainingSpec,
        data: Data,
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self.client = client
        self.ended = ended
        self.topic = f"accelerando-search-{uuid.uuid4().hex[:12]}"
        self.placement = Placement(client, TaskContext(spec, data.locations, self.topic), data)
        self.tasks: dict[int, Task] = {}
        self.states: dict[int, StateLocation] = {}
        self.copies = StateCopies(client)
        self.lost = LostTasks()
        self.count = 0
        self.events: queue.SimpleQueue[tuple[int, str, bytes]] = queue.SimpleQueue()
        self.roster = Roster(client, self.topic)
        client.subscribe_topic(self.topic, self._on_event)
        with contextlib.ExitStack() as stack:
            stack.enter_context(shielded(client))  # workers hold the best model so far
            for worker in self.threads:
                self._with_data(worker)
            self._shield = stack.pop_all()

    # ---- choice of a worker ------------------------------------------------------------------

    @property
    def n_slots(self) -> int:
        """Number of tasks that can run at a time: the threads of all workers."""
        return max(1, sum(self.threads.values()))

    @property
    def free_slots(self) -> int:
        """Number of tasks that can be submitted now."""
        self.roster.refresh()
        return sum(self._has_room(worker) for worker in self.threads)

    @property
    def busy(self) -> bool:
        """Whether a task is unfinished."""
        return bool(self.tasks or self.lost.waiting)

    @property
    def present(self) -> bool:
        """Whether there is a worker."""
        return bool(self.threads)

    @property
    def threads(self) -> dict[str, int]:
        """The number of threads of each worker."""
        return self.roster.threads

    def want(self, n_jobs: int) -> None:
        """Show the scheduler how many workers are useful, for clusters that adapt."""
        self.roster.want(n_jobs)

    def _has_room(self, worker: str) -> bool:
        return self._until_room(worker) <= 0

    def _until_room(self, worker: str) -> float:
        """Return the seconds until a worker should receive a task."""
        running = [task for task in self.tasks.values() if task.worker == worker]
        threads = self.threads.get(worker, 0)
        if any(task.alone for task in running):
            return math.inf
        if len(running) < threads:
            return 0.0
        if len(running) > threads:
            return math.inf
        ends = sorted(task.begun + task.seconds for task in running)
        return ends[0] - time.monotonic() - PREFETCH_SECONDS if ends else math.inf

    def _choose_worker(self, preferred: str | None = None) -> str | None:
        """Return `preferred`, which holds the model, or the worker with the lowest load."""
        if preferred is not None and self._has_room(preferred):
            return preferred
        load = dict.fromkeys(self.threads, 0)
        for task in self.tasks.values():
            if task.worker in load:
                load[task.worker] += 1
                if task.alone:
                    del load[task.worker]
        return min(load, key=lambda worker: load[worker] / self.threads[worker], default=None)

    def _empty_worker(self) -> str | None:
        busy = {task.worker for task in self.tasks.values()}
        return next((worker for worker in self.threads if worker not in busy), None)

    # ---- tasks and reports -------------------------------------------------------------------

    def submit(self, slices: Sequence[Slice], seconds: float = math.inf) -> None:
        """Start a task that trains `slices` in their order, estimated to take `seconds`."""
        if self.placement.data.lazy and len(slices) > 1:
            for part in slices:  # together they could need too many blocks
                self.submit([part], seconds / len(slices))
            return
        worker = self._choose_worker(self.location(slices[0].model))
        if worker is None or not self._send(slices, worker, seconds):
            self.lost.later(slices, seconds)

    def _send_waiting(self) -> None:
        """Send the tasks that were lost or could not be sent, as far as there are workers."""
        for _ in range(len(self.lost.waiting)):
            again = self.lost.waiting.popleft()
            worker = self._empty_worker() if again.alone else self._choose_worker()
            if worker is None or not self._send(again.slices, worker, again.seconds, again.alone):
                self.lost.waiting.append(again)

    def _send(
        self, slices: Sequence[Slice], worker: str, seconds: float, alone: bool = False
    ) -> bool:
        """Send a task; return False if its worker has just died."""
        data = self._with_data(worker)
        if data is None:
            return False
        number = self.count = self.count + 1
        for part in slices:
            self.location(part.model)  # forgets a state that is lost
        slices, rest = self._within_memory(slices)
        states = [self.states[part.model] for part in slices if part.model in self.states]
        parents = {state.future.key: state.future for state in states}
        calls = (call for part in slices for call in range(self._calls_of(part.model), part.limit))
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
        begun = time.monotonic()
        self.tasks[number] = Task(number, slices, future, worker, seconds, begun, alone=alone)
        self.tasks[number].rest = rest
        return True

    def most_calls(self, first: int) -> int:
        """Return how many calls from number `first` on a task can make, given its memory."""
        return self.placement.most_calls(first, self.roster.task_bytes)

    def _within_memory(self, slices: Sequence[Slice]) -> tuple[Sequence[Slice], Slice | None]:
        """Return the slices of a task, and the slice that it leaves for another task.

        A model whose state was lost is trained again from its first call. That takes several tasks
        if its blocks do not fit into the memory of one.
        """
        part = slices[0]
        done = self._calls_of(part.model)
        until = done + self.most_calls(done)
        if len(slices) > 1 or done >= part.start or until >= part.limit:
            return slices, None
        until = min(until, part.start)
        return [part._replace(start=until, stop=until, limit=until, seconds=math.inf)], part

    def _calls_of(self, model: int) -> int:
        return self.states[model].calls if model in self.states else 0

    def _with_data(self, worker: str) -> WorkerData | None:
        """Return the data on a worker; None if the worker has just died, or hangs."""
        try:
            return self.placement.on(worker)
        except TimeoutError:  # it hangs; the limits are honored before the next try
            return None
        except Exception:  # scatter to a dead worker: KeyError, OSError …
            self.roster.refresh(force=True)
            if worker in self.threads:
                raise  # the worker is alive, so the error has another cause
            return None

    def _on_event(self, event: tuple[float, Any]) -> None:
        self.events.put(tuple(event[1][name] for name in ("task", "worker", "reports")))

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
        if self.lost.waiting:
            self.roster.refresh()
            self._send_waiting()
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
            self.lost.clear(part.model)
            if report.error is not None:
                self.states.pop(part.model, None)
            else:
                location = StateLocation(task.future, worker, report.calls)
                self.states[part.model] = location
                self.copies.update(report, location, list(self.threads))
        if task.rest is not None and reports[0].error is None:
            self.lost.later([task.rest], math.inf)
            return []
        if any(report.hung for report in reports):
            self._restart(worker)
        return reports

    def _restart(self, worker: str) -> None:
        """Restart a worker in which a call still runs that took too long."""
        if self.roster.facts.get(worker, {}).get("nanny") is None:
            return  # nobody would start it again

        def restart() -> None:
            with contextlib.suppress(Exception):  # the cluster may be closed meanwhile
                self.client.restart_workers([worker], raise_for_error=False)

        threading.Thread(target=restart, daemon=True).start()

    def _check_task(self, task: Task) -> list[Report]:
        """Handle a task that failed, or that finished without an event."""
        status = task.future.status
        if status == "finished":
            now = time.monotonic()
            task.finished_at = task.finished_at or now
            if now - task.finished_at > EVENT_SECONDS:  # the event was lost with a connection
                del self.tasks[task.number]
                future = submit_beside(self.client, task.worker, reports_of, task.future)
                reports = self._result(future)
                if reports is None:
                    return self._on_lost(task)
                return self._finish(task, task.worker, reports)
        elif status in ("error", "cancelled", "lost"):
            del self.tasks[task.number]
            return self._on_lost(task)
        return []

    def _on_lost(self, task: Task) -> list[Report]:
        """Keep a lost task to send it again. Return reports of models that are given up."""
        error = error_of(task.future)
        if said := scheduler_cannot_load(error):
            raise ClusterError(f"No model can be trained: {said}") from error
        if task.future.status == "error" and not is_loss(error):  # sent again, it would fail again
            return [Report(p.model, p.start, stopped=True, error=error) for p in task.slices]
        self.roster.refresh(force=True)
        whole = task.slices if task.rest is None else [task.rest]
        if task.worker in self.threads:  # it waited for a state on a worker that died
            self.lost.later(whole, task.seconds)
            return []
        given_up = self.lost.on_death(whole, task.alone)
        return [Report(part.model, part.start, stopped=True, error=error) for part in given_up]

    # ---- states ------------------------------------------------------------------------------

    def location(self, model: int) -> str | None:
        """Return the worker that holds the state of `model`; None if the model has no state."""
        if (state := self.states.get(model)) is None:
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
        """Store a state that was read from a checkpoint; without a worker it is trained again."""
        worker = self._choose_worker()
        if worker is not None:
            result = TaskResult({model: state}, [])
            (future,) = send_to(self.client, [result], worker)
            self.states[model] = StateLocation(future, worker, state.calls)

    def get(self, model: int) -> State | None:
        """Return the state of a model in this process; None if it is lost."""
        if self.location(model) is None:
            return None
        future, worker, _ = self.states[model]
        found: State | None = self._result(
            submit_beside(self.client, worker, state_of, future, model)
        )
        return found

    def pickled(self, model: int) -> Callable[[], bytes | None]:
        """Return a function that returns the pickled state that a model has now."""
        if self.location(model) is None:
            return lambda: None
        future, worker, _ = self.states[model]  # held until it was written, or is not needed
        return lambda: self._result(submit_beside(self.client, worker, pickle_of, future, model))

    def _result(self, future: Future) -> Any:
        return result_of(future, self.ended, self.roster)

    def close(self) -> None:
        """Cancel unfinished tasks and release all results."""
        with contextlib.suppress(Exception):  # the cluster may be gone; then nothing is left
            self.client.cancel([task.future for task in self.tasks.values()], force=True)
            self.roster.want(0)
        self._shield.close()
        stop_listening(self.client, self.topic)
        self.tasks.clear()
        self.lost.waiting.clear()
        self.states.clear()
        self.copies = StateCopies(self.client)
        self.placement.clear()
