"""Copies of models on second workers, so that a lost worker costs little training."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from distributed import Client, Future

from accelerando.search._task import only
from accelerando.search._train import Report

__all__ = ["Copies", "Holding", "worth_a_copy"]

COPY_SECONDS = 1.0  # of training are worth a copy of a small model
COPY_RATE = 2e6  # bytes copied per second of training: 2 % of the time at 100 MB/s
COPY_BYTES = 2**28  # a model larger than this is not copied: it would need the memory twice


class Holding(NamedTuple):
    """Where a state is: in the result of which task, on which worker, after how many calls."""

    future: Future
    worker: str
    calls: int


def worth_a_copy(seconds: float, nbytes: int) -> bool:
    """Tell whether so much training since the last copy is worth a copy of so large a model.

    Examples
    --------
    >>> worth_a_copy(seconds=1.5, nbytes=10_000), worth_a_copy(seconds=1.5, nbytes=20_000_000)
    (True, False)
    """
    return seconds > max(COPY_SECONDS, nbytes / COPY_RATE) and nbytes < COPY_BYTES


class Copies:
    """The latest copy of each model, and the one before until that is there."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.held: dict[int, list[Holding]] = {}
        self.unsaved: dict[int, float] = {}  # model -> seconds of training since its last copy

    def note(self, report: Report, holding: Holding, workers: Sequence[str]) -> None:
        """Hear of training, and copy the model if much would be lost with its worker."""
        model = report.model
        seconds = self.unsaved[model] = self.unsaved.get(model, 0.0) + report.seconds
        others = [worker for worker in workers if worker != holding.worker]
        if not others or not worth_a_copy(seconds, report.nbytes):
            return
        other = others[model % len(others)]
        copied = self.client.submit(
            only, holding.future, model, workers=[other], pure=False, priority=1
        )
        earlier = self.held.get(model, [])[-1:]
        self.held[model] = [*earlier, Holding(copied, other, holding.calls)]
        self.unsaved[model] = 0.0

    def take(self, model: int, workers: Collection[str]) -> Holding | None:
        """Return the latest copy that is on a living worker, which is then no copy any more."""
        copies: list[Holding] = self.held.pop(model, [])
        copied: Holding
        for copied in reversed(copies):
            if copied.worker in workers and copied.future.status == "finished":
                return copied
        return None

    def drop(self, model: int) -> None:
        """Forget a model."""
        self.held.pop(model, None)
        self.unsaved.pop(model, None)
