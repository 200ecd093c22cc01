"""Training on the workers of a Dask cluster.

A model's state is the result of the task that trained it last, so it stays on that worker and Dask
moves and spills it like any other result. A task never changes its inputs, it trains a copy: a task
that Dask runs twice gives the same state twice. The driver does not wait for results: a task sends
its report as an event, which takes one message.

Each worker has data of its own, under its own keys. (Copies of one key would not do: Dask's active
memory manager deletes all but one, and the data would travel again and again.) When a worker dies,
its models are trained again from a copy that another worker has, or from their first call.
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
from typing import Any, NamedTuple

import cloudpickle
from distributed import Client, Future

from accelerando._topic import stop_listening
from accelerando._workers import workers_of
from accelerando.search._copies import Copies, Holding
from accelerando.search._data import Data, chunk_of_call
from accelerando.search._task import (
    Held,
    Kit,
    Whole,
    heed_interrupts,
    ignore_interrupts,
    pickle_of,
    reports_of,
    run_task,
    state_of,
)
from accelerando.search._train import Recipe, Report, Slice, State

__all__ = ["Cluster"]

GONE = ("error", "cancelled", "lost")
AHEAD_SECONDS = 0.05  # a worker gets its next task so long before the last one ends
PATIENT_SECONDS = 30.0  # without any worker pass silently
TRIES = 3  # a task that is lost with its worker this often is taken for the cause


class Placed(NamedTuple):
    """The futures of the data that a task on one worker uses."""

    kit: Future
    sources: list[Future]
    validation: Future


@dataclass
class Task:
    """A task that has been given to the cluster."""

    number: int
    slices: Sequence[Slice]
    future: Future
    worker: str
    seconds: float  # a guess
    begun: float  # when it came to its worker, or when the one before it there ended
    finished_at: float | None = None


class Cluster:
    """The workers of a Dask client."""

    fuse_seconds = 0.1  # of work make a task long enough for its few milliseconds to vanish

    def __init__(self, client: Client, recipe: Recipe, data: Data) -> None:
        self.client = client
        self.data = data
        self.topic = f"accelerando-search-{uuid.uuid4().hex[:12]}"
        self.kit = Kit(recipe, data.where, self.topic)
        self.tasks: dict[int, Task] = {}
        self.placed: dict[str, Placed] = {}  # worker -> its data
        self.blocks: list[Future] = []  # of a Dask collection: these have no worker of their own
        self.holder: dict[int, Holding] = {}
        self.copies = Copies(client)
        self.lost: dict[int, int] = {}
        self.count = 0
        self.events: queue.SimpleQueue[tuple[int, str, bytes]] = queue.SimpleQueue()
        self.threads: dict[str, int] = {}
        self._looked = -math.inf
        self._look()
        client.subscribe_topic(self.topic, self._hear)
        client.run(ignore_interrupts, os.getpgid(0), socket.gethostname())
        self._choose()  # waits until there is a worker
        for worker in self.threads:
            self._data_on(worker)

    # ---- where there is room -----------------------------------------------------------------

    @property
    def n_workers(self) -> int:
        """How many slices can be trained at a time: the threads of all workers."""
        return max(1, sum(self.threads.values()))

    @property
    def room(self) -> int:
        """How many tasks can be taken now."""
        self._look()
        return sum(self._has_room(worker) for worker in self.threads)

    @property
    def busy(self) -> bool:
        """Whether a task is under way."""
        return bool(self.tasks)

    def _look(self) -> None:
        if time.monotonic() - self._looked > 1.0:
            workers = workers_of(self.client)
            self.threads = {a: worker["nthreads"] for a, worker in workers.items()}
            self._looked = time.monotonic()

    def _has_room(self, worker: str) -> bool:
        return self._until_room(worker) <= 0

    def _until_room(self, worker: str) -> float:
        """Seconds until a worker should get a task; what it has now ends a little later."""
        own = [task for task in self.tasks.values() if task.worker == worker]
        threads = self.threads.get(worker, 0)
        if len(own) < threads:
            return 0.0
        if len(own) > threads:
            return math.inf
        ends = sorted(task.begun + task.seconds for task in own)
        return ends[0] - time.monotonic() - AHEAD_SECONDS if ends else math.inf

    def _choose(self, home: str | None = None) -> str:
        """Prefer the worker that has the model; move it only if that one is busy."""
        since = time.monotonic()
        while not self.threads:  # a nanny is bringing a worker back
            time.sleep(0.1)
            self._looked = -math.inf
            self._look()
            if time.monotonic() - since > PATIENT_SECONDS:
                warnings.warn(
                    "The cluster has had no worker for a while. The search goes on when there is "
                    "one; press Ctrl-C twice to end it.",
                    stacklevel=2,
                )
                since = math.inf
        if home is not None and self._has_room(home):
            return home
        load = dict.fromkeys(self.threads, 0)
        for task in self.tasks.values():
            if task.worker in load:
                load[task.worker] += 1
        return min(load, key=lambda worker: load[worker] / self.threads[worker])

    # ---- giving and hearing ------------------------------------------------------------------

    def submit(self, slices: Sequence[Slice], seconds: float = math.inf) -> None:
        """Give a task to a worker: some slices, trained one after the other."""
        self._send(slices, self._choose(self.home(slices[0].model)), seconds)

    def _send(self, slices: Sequence[Slice], worker: str, seconds: float) -> None:
        number = self.count = self.count + 1
        held = [self.holder[piece.model] for piece in slices if piece.model in self.holder]
        parents = {holding.future.key: holding.future for holding in held}
        worker, data = self._with_data(worker)
        future = self.client.submit(
            run_task,
            data.kit,
            number,
            list(slices),
            list(parents.values()),
            {i: data.sources[i] for i in self._sources_for(slices)},
            data.validation,
            key=f"{self.topic}-{number}",
            workers=[worker],
            allow_other_workers=True,
            pure=False,
        )
        self.tasks[number] = Task(number, slices, future, worker, seconds, time.monotonic())

    def _sources_for(self, slices: Sequence[Slice]) -> set[int]:
        recipe = self.kit.recipe
        if len(self.data.sources) == 1:
            return {0}
        return {
            self.kit.where[chunk_of_call(call, recipe.n_chunks, recipe.seed)][0]
            for piece in slices
            for call in range(self._calls_of(piece.model), piece.limit)
        }

    def _calls_of(self, model: int) -> int:
        return self.holder[model].calls if model in self.holder else 0

    def _hear(self, event: tuple[float, Any]) -> None:
        _, message = event
        self.events.put((message["task"], message["worker"], message["reports"]))

    def wait(self, timeout: float) -> list[Report]:
        """Return the reports that have come, waiting for one up to ``timeout`` seconds.

        It waits no longer than until a worker has room.
        """
        reports: list[Report] = []
        soon = min(map(self._until_room, self.threads), default=timeout)
        if soon > 0:  # else there was room before, and nothing to fill it with
            timeout = min(timeout, soon)
        with contextlib.suppress(queue.Empty):
            reports += self._told(*self.events.get(timeout=timeout))
            while True:
                reports += self._told(*self.events.get_nowait())
        for task in list(self.tasks.values()):
            reports += self._look_after(task)
        return reports

    def _told(self, number: int, worker: str, blob: bytes) -> list[Report]:
        task = self.tasks.pop(number, None)
        if task is None:
            return []  # Dask ran a task again because its result was lost; we know what it says
        own = [other for other in self.tasks.values() if other.worker == task.worker]
        threads = self.threads.get(task.worker, 0)
        if 0 < threads <= len(own):
            own[threads - 1].begun = time.monotonic()  # it waited for a thread, and has it now
        # The bytes come from our own task on our own workers, over the client's connection.
        return self._done(task, worker, cloudpickle.loads(blob))

    def _done(self, task: Task, worker: str, reports: list[Report]) -> list[Report]:
        for piece, report in zip(task.slices, reports, strict=True):
            self.lost.pop(piece.model, None)
            if report.error is not None:
                self.holder.pop(piece.model, None)
            else:
                holding = Holding(task.future, worker, report.calls)
                self.holder[piece.model] = holding
                self.copies.note(report, holding, list(self.threads))
        return reports

    def _look_after(self, task: Task) -> list[Report]:
        """Deal with a task whose report does not come."""
        status = task.future.status
        if status == "finished":
            now = time.monotonic()
            task.finished_at = task.finished_at or now
            if now - task.finished_at > 2.0:  # the event was lost with a connection
                del self.tasks[task.number]
                reports = self.client.submit(reports_of, task.future, pure=False).result()
                return self._done(task, task.worker, reports)  # where it ran is not known any more
        elif status in ("error", "cancelled"):
            del self.tasks[task.number]
            return self._again(task)
        return []

    def _again(self, task: Task) -> list[Report]:
        """Send a lost task once more, with what is left of the states and of the data."""
        error = _exception(task.future)
        self._looked = -math.inf
        self._look()
        given_up = []
        rest = []
        for piece in task.slices:
            self.lost[piece.model] = self.lost.get(piece.model, 0) + 1
            self.home(piece.model)  # forgets a state that is gone
            if self.lost[piece.model] >= TRIES:
                given_up.append(Report(piece.model, piece.start, stopped=True, error=error))
            else:
                rest.append(piece)
        for piece in rest:  # one by one: if one of them kills workers, it does so alone
            self._send([piece], self._choose(), math.inf)
        return given_up

    # ---- data --------------------------------------------------------------------------------

    def _with_data(self, worker: str) -> tuple[str, Placed]:
        """Return the worker and its data, or another one if this one has just gone."""
        while True:
            try:
                return worker, self._data_on(worker)
            except Exception:  # scatter to a dead worker: KeyError, OSError, TimeoutError …
                self._looked = -math.inf
                self._look()
                if worker in self.threads:
                    raise  # it lives, so this is something else
                worker = self._choose()

    def _data_on(self, worker: str) -> Placed:
        """Return the data of a worker; a worker that has come gets it now."""
        placed = self.placed.get(worker)
        if placed is not None and not any(
            future.status in GONE for future in (placed.kit, placed.validation, *placed.sources)
        ):
            return placed
        parts = [self.kit] if self.data.lazy else [self.kit, *self._in_memory()]
        kit, *own = self.client.scatter(parts, workers=[worker], hash=False)
        validation, *sources = self._blocks() if self.data.lazy else own
        self.placed[worker] = Placed(kit, sources, validation)
        return self.placed[worker]

    def _in_memory(self) -> list[Any]:
        return [Whole(self.data.validation), *self.data.sources]

    def _blocks(self) -> list[Future]:
        """Make the blocks of a Dask collection once; tasks fetch the ones that they need.

        (Blocks can be made again when they are lost, and Dask would then repeat all tasks that led
        to a lost model. The kit, which every worker has for itself, cannot: so a task that is lost
        with its worker is given back to the driver, which knows of a copy.)
        """
        if not self.blocks or any(future.status in GONE for future in self.blocks):
            self.blocks = self.client.compute([self.data.validation, *self.data.sources])
        return self.blocks

    # ---- states ------------------------------------------------------------------------------

    def home(self, model: int) -> str | None:
        """On which worker the state of ``model`` is; None if it has none."""
        holding = self.holder.get(model)
        if holding is None:
            return None
        status = holding.future.status  # finished on a worker that left in good order: moved
        if status == "finished" or (status == "pending" and holding.worker in self.threads):
            return holding.worker
        del self.holder[model]
        copied = self.copies.take(model, self.threads)
        if copied is None:
            return None
        self.holder[model] = copied
        return copied.worker

    def drop(self, models: Sequence[int]) -> None:
        """Let Dask forget models."""
        for model in models:
            self.holder.pop(model, None)
            self.copies.drop(model)

    def put(self, model: int, state: State) -> None:
        """Place a state that was saved."""
        worker = self._choose()
        (future,) = self.client.scatter([Held({model: state}, [])], workers=[worker], hash=False)
        self.holder[model] = Holding(future, worker, state.calls)

    def get(self, model: int) -> State | None:
        """Bring a model here; None if it is lost."""
        if self.home(model) is None:
            return None
        future = self.client.submit(state_of, self.holder[model].future, model, pure=False)
        with contextlib.suppress(Exception):  # lost with its worker: KilledWorker, cancelled …
            state: State = future.result()
            return state
        return None

    def pickled(self, model: int) -> bytes | None:
        """Return the state of a model for a checkpoint."""
        if self.home(model) is None:
            return None
        future = self.client.submit(pickle_of, self.holder[model].future, model, pure=False)
        with contextlib.suppress(Exception):  # lost with its worker: the next save has it
            blob: bytes = future.result()
            return blob
        return None

    def close(self) -> None:
        """Cancel what is under way and let Dask forget everything."""
        with contextlib.suppress(Exception):  # the cluster may be gone; nothing is left to close
            self.client.cancel([task.future for task in self.tasks.values()], force=True)
            self.client.run(heed_interrupts)
        stop_listening(self.client, self.topic)
        self.tasks.clear()
        self.holder.clear()
        self.copies = Copies(self.client)
        self.placed.clear()
        self.blocks.clear()


def _exception(future: Future) -> BaseException:
    if future.status == "error":
        error = future.exception()
        if isinstance(error, BaseException):
            return error
    return RuntimeError(
        "its worker was lost again and again; it may need more memory than there is"
    )
