"""Workers of a search: the interface between the driver and the place where models are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from accelerando.search._train import Report, Slice, State

__all__ = ["Workers"]


class Workers(Protocol):
    """Trains slices and holds the states of models: this process, or a Dask cluster.

    Attributes
    ----------
    min_task_seconds : float
        Slices that are shorter than this are combined into one task, because each task has a
        fixed cost.
    """

    min_task_seconds: float

    @property
    def n_slots(self) -> int:
        """Number of tasks that can run at a time."""

    @property
    def free_slots(self) -> int:
        """Number of tasks that can be submitted now."""

    @property
    def busy(self) -> bool:
        """Whether a task is unfinished."""

    @property
    def present(self) -> bool:
        """Whether there is a worker."""

    def want(self, n_jobs: int) -> None:
        """Say that `n_jobs` jobs could be trained at the same time."""

    def most_calls(self, first: int) -> int:
        """Return how many calls from number `first` on a task can make, given its memory."""

    def submit(self, slices: Sequence[Slice], seconds: float) -> None:
        """Start a task that trains `slices` in their order, estimated to take `seconds`."""

    def wait(self, timeout: float) -> list[Report]:
        """Return the reports that have arrived, after waiting up to `timeout` seconds for one."""

    def location(self, model: int) -> str | None:
        """Return the worker that holds the state of `model`; None if the model has no state."""

    def drop(self, models: Sequence[int]) -> None:
        """Release the states of models that are no longer needed."""

    def put(self, model: int, state: State) -> None:
        """Store a state that was read from a checkpoint."""

    def get(self, model: int) -> State | None:
        """Return the state of a model in this process; None if it is lost."""

    def pickled(self, model: int) -> Callable[[], bytes | None]:
        """Return a function that returns the pickled state that a model has now.

        It may be called in another thread, and returns None if the state is lost.
        """

    def close(self) -> None:
        """Cancel unfinished tasks and release all resources."""
