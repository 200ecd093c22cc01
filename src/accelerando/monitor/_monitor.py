"""Monitor: a pure function from what an update measured to named numbers, the signals.

A monitor holds settings only. Its memory is a small dictionary of numbers that it returns with
every observation and receives with the next one. So saving, resuming and replaying a monitor is
saving, loading and passing a dictionary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from accelerando._validation import check_number

State = Mapping[str, Any]
UNKNOWN = math.nan
"""The value of a signal that is not known yet: every comparison with it is false."""


class CurvatureSeen(NamedTuple):
    """Trace and largest eigenvalue of the Hessian of a batch's loss; the time they took."""

    trace: float
    top: float
    seconds: float


class Observation(NamedTuple):
    r"""The measurements of one update. They are equal on all ranks.

    Attributes
    ----------
    update : int
        The number of model updates so far, including this one.
    batch_size, n_examples : int
        The number of rows of the batch, and of the training set. `n_examples` is None while the
        length of a stream is not known.
    loss : float
        The mean loss of the batch.
    grad_square : float
        :math:`\|G\|^2`, the squared norm of the batch's mean gradient.
    parts : int
        The number of parts of the batch whose gradients were measured: ranks, or micro-batches on
        a single rank. 0 if none were measured.
    parts_square : float
        :math:`\sum_i b_i \|G_i\|^2 / B`, the mean over the parts of the squared norms of their mean
        gradients, weighted by their rows :math:`b_i`.
    seconds, wait_seconds : float
        The duration of an update, and the time in it that ranks wait for each other; means over the
        ranks. With several ranks they are those of the previous update, and ``nan`` if there is
        none.
    ranks : int
        The number of ranks that trained.
    spread : float or None
        The mean squared distance of the ranks' parameters from their average; None if all ranks
        have the same parameters.
    curvature : CurvatureSeen or None
        The Hessian of the loss after the update, if it was looked at.
    """

    update: int
    batch_size: int
    n_examples: int | None
    loss: float
    grad_square: float
    parts: int = 0
    parts_square: float = 0.0
    seconds: float = UNKNOWN
    wait_seconds: float = UNKNOWN
    ranks: int = 1
    spread: float | None = None
    curvature: CurvatureSeen | None = None


class Setting(NamedTuple):
    """The facts about a fit that are known before it starts.

    Attributes
    ----------
    several_ranks : bool
        True if more than one rank may train.
    divisible : bool
        True if a batch may be divided into micro-batches without a change of the result.
    averages_parameters : bool
        True if ranks have their own parameters, which are averaged periodically.
    compressed : bool
        True if gradients are compressed, so that no rank has the exact gradient of the batch.
    """

    several_ranks: bool
    divisible: bool
    averages_parameters: bool = False
    compressed: bool = False


class Monitor(ABC):
    """Base class of all monitors. A subclass has its settings as dataclass fields.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from accelerando.monitor import Monitor, watch
    >>> @dataclass(frozen=True)
    ... class LowestLoss(Monitor):
    ...     signals = ("lowest_loss",)
    ...     def observe(self, seen, state):
    ...         lowest = min(seen.loss, state.get("lowest", seen.loss))
    ...         return (lowest,), {"lowest": lowest}
    >>> [row["lowest_loss"] for row in watch(LowestLoss(), losses=[3.0, 2.0, 2.5])]
    [3.0, 2.0, 2.0]
    """

    signals: ClassVar[tuple[str, ...]] = ()
    """The names of the signals; they become columns of ``updates_frame()``."""

    looks_at_parts: ClassVar[bool] = False
    """True if the monitor needs the gradients of the parts of a batch.

    Then it is called only after updates in which those gradients were measured. Its memory should
    have their number as ``count``: the first hundred are measured in every update.
    """

    every: int | None = None
    """The number of updates between two looks at parts; None leaves it to what they cost."""

    def start(self) -> State:
        """Return the memory before the first update."""
        return {}

    @abstractmethod
    def observe(self, seen: Observation, state: State) -> tuple[tuple[float, ...], State]:
        """Return the values of the signals after an update, and the new memory."""

    def undefined(self, setting: Setting) -> str | None:
        """Return the reason why the signals are undefined in a fit; None if they are defined.

        A monitor that looks at the parts of a batch needs parts.
        """
        return no_parts(setting) if self.looks_at_parts else None


PARTS_NEEDED = (
    "compares the gradients of parts of a batch, and here there are none: one rank trains, and its "
    "batches may not be divided (BatchNorm, a loss that is not a mean over rows, "
    "micro_batch_size=None, or a train_step of your own). Train on two or more ranks (client=, "
    "min_workers=2), use GroupNorm, or set micro_batch_size"
)


PARTS_COMPRESSED = (
    "compares the gradients of parts of a batch with the gradient of the batch, which no rank has "
    "when gradients are compressed. Leave it out, or train without compression"
)


PARTS_OF_REPLICAS = (
    "compares the gradients of ranks at the same parameters, and here every rank has its own "
    "parameters, which are averaged periodically. Leave it out, or train with sync=None"
)


def no_parts(setting: Setting) -> str | None:
    """Return the reason why gradients of parts of a batch cannot be compared; None if they can."""
    if setting.averages_parameters:
        return PARTS_OF_REPLICAS
    if setting.compressed:
        return PARTS_COMPRESSED
    return None if setting.several_ranks or setting.divisible else PARTS_NEEDED


@dataclass(frozen=True)
class Averaged(Monitor):
    """A monitor that averages over the last updates: `memory` says over how many."""

    memory: float = 100.0

    def __post_init__(self) -> None:
        allowed = {math.inf: "math.inf (all updates)"}
        check_number(self, "memory", self.memory, minimum=1, also=allowed)


def blend(old: float, new: float, count: float, memory: float) -> float:
    """Return the mean of all values so far, or of about the last `memory` values if there are more.

    >>> blend(blend(1.0, 1.0, 1, memory=10), 3.0, 2, memory=10)
    2.0
    """
    return old + (new - old) / min(count, memory)


def watch(monitor: Monitor, losses: list[float], **fields: float) -> list[dict[str, float]]:
    """Return the signals of a monitor for recorded losses, without training.

    Parameters
    ----------
    monitor : Monitor
        The monitor.
    losses : list of float
        One loss for each update.
    **fields
        Further fields of :class:`Observation`, equal for all updates.
    """
    state = monitor.start()
    rows = []
    given: dict[str, float] = {"batch_size": 1, "grad_square": 0.0, **fields}
    for update, loss in enumerate(losses, start=1):
        seen = Observation(update=update, loss=loss, **{"n_examples": None, **given})  # type: ignore[arg-type]
        values, state = monitor.observe(seen, state)
        rows.append(dict(zip(monitor.signals, values, strict=True)))
    return rows
