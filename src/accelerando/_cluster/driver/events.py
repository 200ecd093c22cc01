"""Events of the driver's own process: they are never sent.

:mod:`accelerando._cluster.messages` has a table of who makes which event, and when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

RankId: TypeAlias = str


@dataclass(frozen=True)
class TrainEpoch:
    """Train to the end of an epoch.

    Attributes
    ----------
    epoch, until : int
        The current epoch, and the epoch at which the fit ends.
    update, averagings : int
        The position of the driver's state.
    changed : bool
        Whether the driver's model was changed since it was collected: ranks have to load it.
    patch : dict
        See ``TrainSegment``.
    batch_size, next_batch_size : int or None
        What a schedule plans for this epoch and for the next one; None if it is not known ahead.
    n_examples : int or None
        Training rows; None if not known.
    """

    epoch: int
    until: int
    update: int = 0
    averagings: int = 0
    changed: bool = False
    patch: dict[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    next_batch_size: int | None = None
    n_examples: int | None = None


@dataclass(frozen=True)
class EvaluateBatches:
    """Evaluate the first `batches` validation batches with the model of `update`."""

    batches: int
    update: int


@dataclass(frozen=True)
class Collect:
    """Collect the replicas of `update`, if the ranks have them."""

    update: int


@dataclass(frozen=True)
class Interrupt:
    """The user pressed Ctrl-C."""


@dataclass(frozen=True)
class Close:
    """End all ranks."""


@dataclass(frozen=True)
class TaskEnd:
    """How the Dask task of a rank ended although nobody stopped it.

    Attributes
    ----------
    status : str
        ``finished`` (the rank could not reach the mailbox), ``cancelled`` (Dask lost its data),
        ``killed`` (Dask gave the task up after its worker or its data were lost), ``unreachable``
        (a RuntimeError or an OSError while it started), ``raised`` (any other exception).
    reason : str
        A sentence for the message of a ClusterError.
    """

    status: Literal["finished", "cancelled", "killed", "unreachable", "raised"]
    reason: str = ""


@dataclass(frozen=True)
class Surveyed:
    """What Dask knows now: all workers, the tasks of ranks that ended, workers that are closing."""

    workers: tuple[str, ...]
    tasks: Mapping[RankId, TaskEnd] = field(default_factory=dict)
    closing: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProgressSeen:
    """The first member reported its progress; see ``LiveProgress`` of the driver."""

    update: int
    update_seconds: float
    period: int = 1


@dataclass(frozen=True)
class RankNotStarted:
    """The task could not be submitted: the worker that was to receive the data left."""

    rank: RankId


@dataclass(frozen=True)
class Tick:
    """Time passed."""
