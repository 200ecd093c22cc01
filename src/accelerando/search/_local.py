"""Training in this process, one slice after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import cloudpickle
import dask

from accelerando.search._data import Chunk, Data
from accelerando.search._placement import MANY_CALLS
from accelerando.search._train import Report, Slice, State, TrainingSpec, train_slice

__all__ = ["LocalWorkers"]


class LocalWorkers:
    """Workers of a search without a cluster: one slot in this process.

    Models are trained in place, without copies. See :class:`Workers` for the methods.

    Parameters
    ----------
    spec : TrainingSpec
        Settings of the search.
    data : Data
        Delayed data is computed at once.
    stop_requested : callable
        Returns True if training should end after the current call.
    """

    n_slots = 1
    present = True
    min_task_seconds = 0.0  # a task has no fixed cost here

    def __init__(self, spec: TrainingSpec, data: Data, stop_requested: Callable[[], bool]) -> None:
        self.spec = spec
        self.stop_requested = stop_requested
        if data.lazy:
            *groups, validation = dask.compute(*data.groups, data.validation)
        else:
            groups, validation = data.groups, data.validation
        self.chunks = [groups[i].chunks[j] for i, j in data.locations]
        self.validation: Chunk = validation
        self.states: dict[int, State] = {}
        self.queue: deque[Slice] = deque()

    @property
    def free_slots(self) -> int:
        """Number of tasks that can be submitted now."""
        return 0 if self.queue else 1

    @property
    def busy(self) -> bool:
        """Whether a task is unfinished."""
        return bool(self.queue)

    def want(self, n_jobs: int) -> None:
        """Do nothing: there is one worker, whatever is wanted."""

    def most_calls(self, first: int) -> int:
        """Return a large number, because the data is in memory."""
        return MANY_CALLS

    def submit(self, slices: Sequence[Slice], seconds: float) -> None:
        """Queue a task. Its duration is not needed, because tasks do not overlap."""
        del seconds
        self.queue.extend(slices)

    def wait(self, timeout: float) -> list[Report]:
        """Train until the task is done or a stop is requested; the timeout is not needed."""
        del timeout
        reports: list[Report] = []
        while self.queue and not (reports and self.stop_requested()):
            part = self.queue.popleft()
            # The state is removed while it is trained, so that an interrupt leaves no state that
            # is half trained.
            state, report = train_slice(
                self.spec,
                self.states.pop(part.model, None),
                part,
                chunk=self.chunks.__getitem__,
                validation=self.validation,
                stop_requested=self.stop_requested,
            )
            if state is not None:
                self.states[part.model] = state
            reports.append(report)
        return reports

    def location(self, model: int) -> str | None:
        """Return "here" if the model has a state."""
        return "here" if model in self.states else None

    def drop(self, models: Sequence[int]) -> None:
        """Release the states of models that are no longer needed."""
        for model in models:
            self.states.pop(model, None)

    def put(self, model: int, state: State) -> None:
        """Store a state that was read from a checkpoint."""
        self.states[model] = state

    def get(self, model: int) -> State | None:
        """Return the state of a model; None if it is lost."""
        return self.states.get(model)

    def pickled(self, model: int) -> Callable[[], bytes | None]:
        """Return a function that returns the pickled state that a model has now."""
        state = self.states.get(model)
        try:
            blob = None if state is None else bytes(cloudpickle.dumps(state))
        except Exception as error:
            name = type(self.spec.estimator).__name__
            raise TypeError(
                f"A trained {name} cannot be pickled ({error}), so it cannot be saved. Search "
                "without checkpoint."
            ) from error
        return lambda: blob

    def close(self) -> None:
        """Release all states."""
        self.states.clear()
        self.queue.clear()
