"""Copies of model states on second workers, so that a lost worker costs little training."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from distributed import Client, Future

from accelerando.search._task import extract_model
from accelerando.search._train import Report

__all__ = ["StateCopies", "StateLocation", "should_copy", "submit_beside"]

COPY_SECONDS = 1.0  # training time after which a small model is copied
COPY_RATE = 2e6  # bytes to copy per second of training: 2 % of the time at 100 MB/s
COPY_BYTES = 2**28  # larger models are not copied, because they would need the memory twice


class StateLocation(NamedTuple):
    """Location of a state: the task that has it in its result, the worker, and the calls made."""

    future: Future
    worker: str
    calls: int


def submit_beside(client: Client, worker: str, function: Any, *arguments: Any) -> Future:
    """Submit a task to the worker that holds its input: others may lack our packages."""
    options = {"workers": [worker], "allow_other_workers": True, "pure": False}
    return client.submit(function, *arguments, **options)


def should_copy(seconds: float, nbytes: int) -> bool:
    """Return True if a model of `nbytes` bytes should be copied.

    Parameters
    ----------
    seconds : float
        Training time since the last copy.
    nbytes : int
        Size of the model.

    Examples
    --------
    >>> should_copy(seconds=1.5, nbytes=10_000), should_copy(seconds=1.5, nbytes=20_000_000)
    (True, False)
    """
    return seconds > max(COPY_SECONDS, nbytes / COPY_RATE) and nbytes < COPY_BYTES


class StateCopies:
    """The latest copy of each model, and the previous one until the latest is complete."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.locations: dict[int, list[StateLocation]] = {}
        self.unsaved: dict[int, float] = {}  # model -> seconds of training since its last copy

    def update(self, report: Report, location: StateLocation, workers: Sequence[str]) -> None:
        """Record the training in `report`, and copy the model to another worker if it is worth it.

        Parameters
        ----------
        report : Report
            The training that the model received.
        location : StateLocation
            Where the new state is.
        workers : sequence of str
            Addresses of all workers.
        """
        model = report.model
        seconds = self.unsaved[model] = self.unsaved.get(model, 0.0) + report.seconds
        others = [worker for worker in workers if worker != location.worker]
        if not others or not should_copy(seconds, report.nbytes):
            return
        other = others[model % len(others)]
        copied = self.client.submit(
            extract_model, location.future, model, workers=[other], pure=False, priority=1
        )
        earlier = self.locations.get(model, [])[-1:]
        self.locations[model] = [*earlier, StateLocation(copied, other, location.calls)]
        self.unsaved[model] = 0.0

    def pop(self, model: int, workers: Collection[str]) -> StateLocation | None:
        """Forget the copies of a model and return the latest one on `workers`, if any."""
        copies: list[StateLocation] = self.locations.pop(model, [])
        copied: StateLocation
        for copied in reversed(copies):
            if copied.worker in workers and copied.future.status == "finished":
                return copied
        return None

    def drop(self, model: int) -> None:
        """Forget a model."""
        self.locations.pop(model, None)
        self.unsaved.pop(model, None)
