"""Lost tasks: which model has killed its worker?

If a worker dies, every model of its tasks may be the cause. Each of them is suspected, and tried
alone: in its own task, on a worker without other tasks. Only a worker that dies then is
counted as a loss, so that no model is given up because of another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distributed import Future

from accelerando.search._train import Slice

__all__ = ["MAX_LOSSES", "Lost", "LostTasks", "Task", "error_of", "is_loss"]

MAX_LOSSES = 2  # a model that was alone on this many workers when they died is given up


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
    alone: bool = False  # the worker gets no other task meanwhile
    rest: Slice | None = None  # follows if this task only repeats calls of a lost model


class Lost(NamedTuple):
    """A task that has to be sent again."""

    slices: Sequence[Slice]
    seconds: float
    alone: bool  # on a worker without other tasks


class LostTasks:
    """The tasks that wait to be sent again, and the models that are suspected."""

    def __init__(self) -> None:
        self.waiting: deque[Lost] = deque()
        self.losses: dict[int, int] = {}  # model -> workers that died while it was alone there

    def on_death(self, slices: Iterable[Slice], alone: bool) -> list[Slice]:
        """Record that the worker of a task died; return the slices of models to give up.

        Examples
        --------
        >>> part, other = (Slice(model, {}, 0, 3, 3, 1.0) for model in (4, 5))
        >>> lost = LostTasks()
        >>> lost.on_death([part, other], alone=False), len(lost.waiting)
        ([], 2)
        >>> lost.on_death([part], alone=True)
        []
        >>> [given_up.model for given_up in lost.on_death([part], alone=True)]
        [4]
        """
        given_up = []
        for part in slices:
            self.losses[part.model] = self.losses.get(part.model, 0) + alone
            if self.losses[part.model] >= MAX_LOSSES:
                given_up.append(part)
            else:
                self.waiting.append(Lost([part], float("inf"), alone=True))
        return given_up

    def later(self, slices: Sequence[Slice], seconds: float) -> None:
        """Keep a task that could not be sent, for a reason that is not its own."""
        self.waiting.append(Lost(slices, seconds, alone=False))

    def clear(self, model: int) -> None:
        """Acquit a model that has ended a task."""
        self.losses.pop(model, None)


def error_of(future: Future) -> BaseException:
    """Return the exception of a task that was lost."""
    if future.status == "error":
        error = future.exception()
        if isinstance(error, BaseException):
            return error
    return RuntimeError(
        f"{MAX_LOSSES} workers that trained only this model died. It may need more memory than a "
        "worker has."
    )


def is_loss(error: BaseException) -> bool:
    """Return True if a task failed because a worker was lost, not because of what it did.

    Examples
    --------
    >>> is_loss(OSError("Timed out")), is_loss(ValueError("a parameter"))
    (True, False)
    """
    lost = ("KilledWorker", "FutureCancelledError", "CancelledError", "P2PConsistencyError")
    return isinstance(error, OSError) or type(error).__name__ in lost
