"""What a strategy is: numbers in, a period and a rule out, no tensors.

A strategy holds settings only. What it has to remember between updates is a small dictionary of
numbers that it returns after every update and gets back with the next one, so that saving,
resuming and replaying a strategy is saving, loading and passing a dictionary.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from accelerando._whole import is_whole

State = Mapping[str, float]


class Signals(NamedTuple):
    """What is known about an update when a strategy is asked.

    Attributes
    ----------
    update : int
        Its number k, counted from 0.
    epoch : int
        Epochs finished before it.
    total_updates : float
        Updates of the whole fit, K, as far as batch sizes stay as they are; ``nan`` while a stream
        has not told its length.
    lr : float
        Its learning rate γ_k.
    loss : float or None
        Mean loss of its batches, for strategies with ``needs_loss``; None before it is done.
    spread : float or None
        S_k, the mean squared distance of the ranks' parameters from their average, if ranks have
        met after this update.
    """

    update: int
    epoch: int
    total_updates: float
    lr: float
    loss: float | None = None
    spread: float | None = None


class Average(NamedTuple):
    """Every rank goes on from the average of all.

    Attributes
    ----------
    optimizer_state : str
        What happens to the ranks' momentum then: "keep", "average" or "reset".
    """

    optimizer_state: str = "keep"


class Pull(NamedTuple):
    r"""Ranks and a central model pull each other while ranks take a step; ranks stay apart.

    .. math::

        c_i &= \alpha (w_i - z), \quad w_i \leftarrow w_i - \gamma g_i(w_i) - c_i \\
        z &\leftarrow z + \textstyle\sum_i c_i + \mu (z - z_\text{before})

    Attributes
    ----------
    alpha : float
        How far a rank is moved towards the central model.
    momentum : float
        μ, of the central model.
    """

    alpha: float
    momentum: float = 0.0


class Outer(NamedTuple):
    r"""An optimizer steps along the mean change of the ranks, and all go on from there.

    .. math::

        \Delta &= z - \bar w, \quad v \leftarrow \mu v + \Delta \\
        z &\leftarrow z - \eta (\Delta + \mu v)

    Attributes
    ----------
    lr, momentum : float
        η and μ, Nesterov's.
    """

    lr: float
    momentum: float


Rule = Average | Pull | Outer


class Strategy:
    """What ``sync=`` takes: :class:`AllReduce`, or one of the :class:`Averaging` strategies."""

    def with_settings(self, **changes: Any) -> Self:
        """Return the same strategy with other settings.

        Examples
        --------
        >>> from accelerando.sync import PeriodicAveraging
        >>> PeriodicAveraging(4).with_settings(period=8)
        PeriodicAveraging(period=8, optimizer_state='keep')
        """
        known = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise ValueError(
                f"{type(self).__name__} has no setting {', '.join(unknown)}. Its settings: "
                f"{', '.join(known) or 'none'}."
            )
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


@dataclass(frozen=True)
class AllReduce(Strategy):
    """Gradients of all ranks are averaged in every update: the default.

    All ranks have the same parameters at any time, those that one process would have.

    Examples
    --------
    >>> from accelerando.sync import AllReduce
    >>> AllReduce()
    AllReduce()
    """


class Averaging(Strategy, ABC):
    """Base class of the strategies in which every rank has parameters of its own.

    Each rank takes its own batches and steps with its own optimizer. After a *period* of updates
    they meet. Write your own by subclassing it, with settings as dataclass fields. If it reads the
    loss, set the class attribute ``needs_loss`` to True: ranks of a cluster then tell each other
    their losses in every update, and not only when they meet.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from accelerando.sync import Averaging, replay
    >>> @dataclass(frozen=True)
    ... class Doubling(Averaging):
    ...     epochs: int = 1
    ...     def next_period(self, signals, state):
    ...         return 2 ** (signals.epoch // self.epochs)
    >>> replay(Doubling(), spreads=[0.1] * 6, updates_per_epoch=2)["period"].tolist()
    [1, 1, 2, 2, 4, 4]
    """

    needs_loss: ClassVar[bool] = False  # ranks then tell each other their losses in every update

    def start(self) -> State:
        """Return what the strategy remembers before the first update."""
        return {}

    @abstractmethod
    def next_period(self, signals: Signals, state: State) -> int:
        """Return after how many updates since they last met ranks are to meet again.

        Parameters
        ----------
        signals : Signals
            Of the update that comes next.
        state : mapping
            What it remembers.
        """

    def observe(self, signals: Signals, state: State) -> State:
        """Return what to remember after an update.

        Parameters
        ----------
        signals : Signals
            Of the update just done; with a spread if ranks have met.
        state : mapping
            What it remembered before.
        """
        return state

    def rule(self, ranks: int) -> Rule:
        """Return what happens when so many ranks meet."""
        return Average()

    def begins_anew(self, signals: Signals, state: State) -> bool:
        """Tell whether ranks that a central model pulls all go on from it after they have met.

        Parameters
        ----------
        signals : Signals
            Of the update just done, after which they meet.
        state : mapping
            What it remembers.
        """
        return False

    def ranks_wanted(self) -> int | str | None:
        """Return how many ranks there are to be, "auto" for as many as pay, None for any number."""
        return None


def ring_bytes(numbers: int, ranks: int) -> int:
    r"""Return the bytes that all ranks together send to average so many bytes in a ring.

    Each of :math:`n` ranks sends :math:`2 (n - 1) / n` of them (Patarasuk and Yuan 2009), so that
    all send :math:`2 (n - 1)` times as many.

    Parameters
    ----------
    numbers : int
        Bytes of what is averaged.
    ranks : int
        How many ranks there are.

    Examples
    --------
    >>> from accelerando.sync import ring_bytes
    >>> ring_bytes(4 * 1000, ranks=16)
    120000
    """
    return 2 * (ranks - 1) * numbers


OPTIMIZER_STATES = ("keep", "average", "reset")


def check_optimizer_state(strategy: object, value: str) -> None:
    """Raise unless it is one of the three things that can happen to momentum."""
    if value not in OPTIMIZER_STATES:
        raise ValueError(
            f"The 'optimizer_state' parameter of {type(strategy).__name__} must be 'keep', "
            f"'average' or 'reset'. Got {value!r} instead."
        )


def check_whole(strategy: object, **values: int) -> None:
    """Raise unless every value is a whole number of at least one."""
    for name, value in values.items():
        if not is_whole(value, 1):
            raise ValueError(
                f"The '{name}' parameter of {type(strategy).__name__} must be a whole number of "
                f"at least 1. Got {value!r} instead."
            )


def check_between(strategy: object, least: float, below: float, **values: float) -> None:
    """Raise unless every value is a number from `least` to below `below`."""
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value < below:
            bound = f"to below {below:g}" if below < float("inf") else "on"
            raise ValueError(
                f"The '{name}' parameter of {type(strategy).__name__} must be a number from "
                f"{least:g} {bound}. Got {value!r} instead."
            )
