"""Strategies: when ranks average, and by which rule; numbers only, no tensors.

A strategy holds settings only. What it remembers between updates is a small dictionary of numbers
that it returns after every update and receives with the next one, so that saving, resuming and
replaying a strategy means saving, loading and passing a dictionary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from accelerando._decisions import Signals, State
from accelerando._deprecation import warn_deprecated
from accelerando._validation import as_piece, check_choice

OPTIMIZER_STATES = ("keep", "average", "reset")


class Average(NamedTuple):
    """Every rank continues from the average of all.

    Attributes
    ----------
    optimizer_state : str
        What happens to the ranks' momentum: "keep", "average" or "reset".
    """

    optimizer_state: str = "keep"


class Pull(NamedTuple):
    r"""Ranks and a central model pull each other while ranks take a step; replicas stay different.

    .. math::

        c_i &= \alpha (w_i - z), \quad w_i \leftarrow w_i - \gamma g_i(w_i) - c_i \\
        z &\leftarrow z + \textstyle\sum_i c_i + \mu (z - z_\text{before})

    Attributes
    ----------
    alpha : float
        The part of its distance by which a replica moves towards the central model.
    momentum : float
        Momentum μ of the central model.
    """

    alpha: float
    momentum: float = 0.0


class Outer(NamedTuple):
    r"""An optimizer steps along the mean change of the ranks, and all continue from the result.

    .. math::

        \Delta &= z - \bar w, \quad v \leftarrow \mu v + \Delta \\
        z &\leftarrow z - \eta (\Delta + \mu v)

    Attributes
    ----------
    lr, momentum : float
        η and μ (Nesterov).
    """

    lr: float
    momentum: float


Rule = Average | Pull | Outer


class Strategy:
    """Base class of :class:`AllReduce` and the :class:`Averaging` strategies, for ``sync=``."""

    def with_settings(self, **changes: Any) -> Self:
        """Return the same strategy with other settings.

        Examples
        --------
        >>> from accelerando.sync import PeriodicAveraging
        >>> PeriodicAveraging(4).with_settings(period=8)
        PeriodicAveraging(period=8, optimizer_state='keep')
        """
        return as_piece("sync", self, type(self), settings=changes, allowed="a strategy")


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
    """Base class of the strategies in which every rank has a replica of the parameters.

    Each rank has its own batches and its own optimizer. After a *period* of updates ranks average.
    Write your own strategy as a subclass, with settings as dataclass fields. It reads the
    :class:`~accelerando.policies.Signals` of an update: ``update``, ``epoch``, ``lr`` and
    ``total_updates`` before it, ``spread`` and ``loss`` after it. A value that is not known is
    ``nan``. If the strategy reads the loss, set the class attribute ``needs = ("loss",)``: ranks of
    a cluster then exchange their losses in every update, and not only when they average.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from accelerando.policies import replay
    >>> from accelerando.sync import Averaging
    >>> @dataclass(frozen=True)
    ... class Doubling(Averaging):
    ...     epochs: int = 1
    ...     def next_period(self, signals, state):
    ...         return 2 ** (signals.epoch // self.epochs)
    >>> frame = replay(Doubling(), {"spread": [0.1] * 5}, updates_per_epoch=2)
    >>> frame["period"].tolist()
    [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """Signals that ranks must exchange in every update: ``("loss",)`` or nothing."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "needs_loss" in vars(cls):
            warn_deprecated(f"{cls.__name__}.needs_loss", 'Write needs = ("loss",).')
            cls.needs = ("loss",) if vars(cls)["needs_loss"] else ()

    def start(self) -> State:
        """Return what the strategy remembers before the first update."""
        return {}

    @abstractmethod
    def next_period(self, signals: Signals, state: State) -> int:
        """Return the number of updates between the last averaging and the next one.

        Parameters
        ----------
        signals : Signals
            Of the next update.
        state : mapping
            What the strategy remembers.
        """

    def observe(self, signals: Signals, state: State) -> State:
        """Return what to remember after an update.

        Parameters
        ----------
        signals : Signals
            Of the update just done; with a spread if ranks have averaged.
        state : mapping
            What the strategy remembered before.
        """
        return state

    def rule(self, ranks: int) -> Rule:
        """Return what happens to the parameters when `ranks` ranks average."""
        return Average()

    def begins_anew(self, signals: Signals, state: State) -> bool:
        """Return True if all ranks continue from the central model after this averaging.

        Parameters
        ----------
        signals : Signals
            Of the update just done, after which ranks average.
        state : mapping
            What the strategy remembers.
        """
        return False

    def ranks_wanted(self) -> int | str | None:
        """Return the number of ranks, "auto" for as many as pay, or None for any number."""
        return None


def ring_bytes(numbers: int, ranks: int) -> int:
    r"""Return the bytes that all ranks together send to average `numbers` bytes in a ring.

    Each of :math:`n` ranks sends :math:`2 (n - 1) / n` of them (Patarasuk and Yuan 2009), so that
    all send :math:`2 (n - 1)` times as many.

    Parameters
    ----------
    numbers : int
        Bytes of the tensors that are averaged.
    ranks : int
        Number of ranks.

    Examples
    --------
    >>> from accelerando.sync import ring_bytes
    >>> ring_bytes(4 * 1000, ranks=16)
    120000
    """
    return 2 * (ranks - 1) * numbers


def check_optimizer_state(strategy: object, value: str) -> None:
    """Raise unless `value` says what happens to momentum at an averaging."""
    check_choice(strategy, "optimizer_state", value, OPTIMIZER_STATES)
