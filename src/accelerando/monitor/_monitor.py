"""What a monitor is: what an update yields in, named numbers out, no side effects.

A monitor holds settings only. What it has to remember between updates is a small dictionary of
numbers that it returns with every observation and gets back with the next one, so that saving,
resuming and replaying a monitor is saving, loading and passing a dictionary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

State = Mapping[str, float]
UNKNOWN = math.nan
"""What a signal is while nothing can be said: every comparison with it is false."""


class Observation(NamedTuple):
    r"""What one update yields: numbers on which all ranks agree.

    Attributes
    ----------
    update : int
        Model updates done, this one included.
    batch_size, n_examples : int
        Rows of its batch, and of the training set; None while a stream has not told its length.
    loss : float
        Mean loss of the batch.
    grad_square : float
        :math:`\|G\|^2`, the squared norm of the batch's mean gradient.
    parts : int
        Into how many parts the batch was divided whose own gradients were looked at: ranks, or
        micro-batches on a single rank. 0 if nobody looked.
    parts_square : float
        :math:`\sum_i b_i \|G_i\|^2 / B`, the mean over the parts of the squared norms of their mean
        gradients, weighted by their rows :math:`b_i`.
    seconds, wait_seconds : float
        What an update takes, and how long of that the ranks wait for each other; their mean over
        the ranks. With several ranks they are those of the update before, and ``nan`` if there
        was none.
    ranks : int
        How many trained.
    spread : float or None
        Mean squared distance of the ranks' parameters from their average, where ranks have
        parameters of their own.
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


class Setting(NamedTuple):
    """What is known about a fit before it starts.

    Attributes
    ----------
    several_ranks : bool
        Whether more than one rank may train.
    divisible : bool
        Whether a batch may be divided into micro-batches without another result.
    averages_parameters : bool
        Whether ranks have parameters of their own that are averaged now and then.
    compressed : bool
        Whether gradients are compressed, so that nobody has the true one of the whole batch.
    """

    several_ranks: bool
    divisible: bool
    averages_parameters: bool = False
    compressed: bool = False


class Monitor(ABC):
    """Base class of all monitors; write your own with settings as dataclass fields.

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
    """The names of the numbers it yields; they become columns of ``updates_frame()``."""

    looks_at_parts: ClassVar[bool] = False
    """Whether it needs the gradients of the parts of a batch.

    If so, it is asked only after updates in which somebody looked at them.
    """

    def start(self) -> State:
        """Return what the monitor remembers before the first update."""
        return {}

    @abstractmethod
    def observe(self, seen: Observation, state: State) -> tuple[tuple[float, ...], State]:
        """Return the values of the signals after an update, and what to remember."""

    def undefined(self, setting: Setting) -> str | None:
        """Return why this monitor can say nothing in a fit, or None if it can."""
        return None


PARTS_NEEDED = (
    "compares the gradients of parts of a batch, and here there are none: one rank trains, and its "
    "batches may not be divided (BatchNorm, a loss that is no mean over rows, "
    "micro_batch_size=None, or a train_step of your own). Train on two or more ranks (client=, "
    "min_workers=2), use GroupNorm, or set micro_batch_size"
)


PARTS_COMPRESSED = (
    "compares the gradients of parts of a batch with that of the whole batch, which nobody has "
    "when gradients are compressed. Leave it out, or train without compression"
)


PARTS_APART = (
    "compares the gradients of ranks at the same parameters, and here every rank has parameters of "
    "its own that are averaged now and then. Leave it out, or train with sync=None"
)


def no_parts(setting: Setting) -> str | None:
    """Return why the gradients of parts of a batch cannot be compared, or None if they can."""
    if setting.averages_parameters:
        return PARTS_APART
    if setting.compressed:
        return PARTS_COMPRESSED
    return None if setting.several_ranks or setting.divisible else PARTS_NEEDED


class Moments(NamedTuple):
    r"""Unbiased estimates from one update.

    With parts of :math:`b_i` rows, :math:`m` of them, and the batch of :math:`B` rows,

    .. math::

        \widehat{\operatorname{tr}\Sigma} &= \frac{1}{m - 1}
            \Bigl(\sum_i b_i \|G_i\|^2 - B \|G\|^2\Bigr) \\
        \widehat{\|g\|^2} &= \|G\|^2
            - \Bigl(\frac1B - \frac1N\Bigr) \widehat{\operatorname{tr}\Sigma}

    The parts may have any sizes. The first is never negative; the second is for a batch drawn
    without repetition from :math:`N` rows.

    Attributes
    ----------
    variance : float
        Of the gradients of single rows, summed over the parameters.
    square : float
        Squared norm of the gradient on the whole training set; negative now and then.
    """

    variance: float
    square: float


def moments(seen: Observation) -> Moments | None:
    """Return the estimates of one update; None if its parts were not looked at.

    Parameters
    ----------
    seen : Observation
        What a monitor is given; ``parts`` is at least 2 where the parts of a batch were looked at.

    Returns
    -------
    Moments or None
        Variance and squared norm; the formulas stand there.
    """
    if seen.parts < 2:
        return None
    between = max(0.0, seen.parts_square - seen.grad_square)
    variance = seen.batch_size * between / (seen.parts - 1)
    share = 1.0 / seen.batch_size
    if seen.n_examples is not None:
        share = max(0.0, share - 1.0 / seen.n_examples)
    return Moments(variance, seen.grad_square - share * variance)


def check_memory(monitor: object, memory: float) -> None:
    """Raise unless a memory is a number of at least one update."""
    if isinstance(memory, bool) or not isinstance(memory, int | float) or not memory >= 1:
        raise ValueError(
            f"The 'memory' parameter of {type(monitor).__name__} is a number of updates and must "
            f"be at least 1. Got {memory!r} instead."
        )


def blend(old: float, new: float, count: float, memory: float) -> float:
    """Return a mean of all values so far, and of about the last `memory` ones when there are more.

    >>> blend(blend(1.0, 1.0, 1, memory=10), 3.0, 2, memory=10)
    2.0
    """
    return old + (new - old) / min(count, memory)


def watch(monitor: Monitor, losses: list[float], **fields: float) -> list[dict[str, float]]:
    """Return what a monitor would say to recorded losses, without training.

    Parameters
    ----------
    monitor : Monitor
        Any monitor.
    losses : list of float
        One loss for each update.
    **fields
        Further fields of :class:`Observation`, the same for all updates.
    """
    state = monitor.start()
    rows = []
    given: dict[str, float] = {"batch_size": 1, "grad_square": 0.0, **fields}
    for update, loss in enumerate(losses, start=1):
        seen = Observation(update=update, loss=loss, **{"n_examples": None, **given})  # type: ignore[arg-type]
        values, state = monitor.observe(seen, state)
        rows.append(dict(zip(monitor.signals, values, strict=True)))
    return rows
