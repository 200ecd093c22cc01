"""Schedules: batch sizes that depend on the epoch or the update alone and are known ahead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from accelerando._decisions import Decision, Policy, Signals, State
from accelerando._validation import check, check_integer, check_number
from accelerando.policies._damping import instead_of_growing


@dataclass(frozen=True)
class Constant(Policy):
    """The same batch size for every update.

    Parameters
    ----------
    size : int
        Rows per batch.

    Examples
    --------
    >>> from accelerando.policies import Constant, replay
    >>> replay(Constant(64), {"loss": [1.0, 0.5]})["batch_size"].tolist()
    [64, 64, 64]
    """

    scheduled: ClassVar[bool] = True

    size: int = 128

    def __post_init__(self) -> None:
        check_integer(self, "size", self.size)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        return Decision(self.size), state


@dataclass(frozen=True)
class FullBatch(Policy):
    """Every example in every update: gradient descent.

    Examples
    --------
    >>> from accelerando.policies import FullBatch, replay
    >>> replay(FullBatch(), {"loss": [1.0]}, n_examples=1797)["batch_size"].tolist()
    [1797, 1797]
    """

    scheduled: ClassVar[bool] = True

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        if math.isnan(signals["n_examples"]):
            raise ValueError(
                "FullBatch has to know how many examples there are, and the length of a stream is "
                "not known. Use a data set with a length, or another batch_size."
            )
        return Decision(int(signals["n_examples"])), state


@dataclass(frozen=True)
class Schedule(Policy):
    """A batch size for every epoch, from a table.

    Parameters
    ----------
    sizes : mapping from epoch to rows
        The size holds from its epoch (counted from 0) until the next entry. Epoch 0 must be there.

    Examples
    --------
    >>> from accelerando.policies import Schedule, replay
    >>> replay(Schedule({0: 32, 2: 256}), {"loss": [1.0, 0.9, 0.8]})["batch_size"].tolist()
    [32, 32, 256, 256]
    """

    scheduled: ClassVar[bool] = True

    sizes: Mapping[int, int]

    def __post_init__(self) -> None:
        allowed = "a mapping from epochs, counted from 0, to batch sizes, with an entry for epoch 0"
        good = isinstance(self.sizes, Mapping) and 0 in self.sizes and min(self.sizes) >= 0
        check(good, self, "sizes", allowed, self.sizes)
        for epoch, size in self.sizes.items():
            check_integer(self, f"sizes[{epoch}]", size)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        begun = max(epoch for epoch in self.sizes if epoch <= signals["epoch"])
        return Decision(self.sizes[begun]), state


def _geometric(policy: GeoDamp | GeoDampLR, signals: Signals) -> float:
    # The exponent of an integer stays an integer: powers of integers are then exact.
    steps = int(signals["epoch"]) // policy.delay
    return float(policy.initial * policy.factor**steps)


@dataclass(frozen=True)
class GeoDamp(Policy):
    r"""Multiply the batch size by a factor every few epochs.

    .. math:: B_e = B_0 \, f^{\lfloor e / \mathrm{delay} \rfloor}

    Parameters
    ----------
    initial : int
        Batch size :math:`B_0` of the first epochs.
    delay : float
        Epochs between two increases.
    factor : float
        Growth :math:`f` of each increase.

    References
    ----------
    S. Smith, P.-J. Kindermans, C. Ying, Q. Le, *Don't decay the learning rate, increase the batch
    size*, arXiv:1711.00489 (2017).

    Examples
    --------
    >>> from accelerando.policies import GeoDamp, replay
    >>> frame = replay(GeoDamp(initial=128, delay=2, factor=5), {"loss": [1.0] * 4})
    >>> frame["batch_size"].tolist()
    [128, 128, 640, 640, 3200]
    """

    scheduled: ClassVar[bool] = True

    initial: int = 128
    delay: float = 5
    factor: float = 2

    def __post_init__(self) -> None:
        check_integer(self, "initial", self.initial)
        check_number(self, "delay", self.delay, above=0)
        check_number(self, "factor", self.factor, above=0)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        return Decision(_geometric(self, signals)), state


@dataclass(frozen=True)
class GeoDampLR(Policy):
    """The counterpart of :class:`GeoDamp` that keeps the batch and divides the learning rate.

    This is ordinary SGD with a stepwise schedule; the noise scale lr / batch size is the same as
    GeoDamp's at every epoch, the number of model updates is not.

    Parameters
    ----------
    initial, delay, factor
        As for :class:`GeoDamp`.

    Examples
    --------
    >>> from accelerando.policies import GeoDampLR, replay
    >>> frame = replay(GeoDampLR(initial=128, delay=2, factor=5), {"loss": [1.0] * 4})
    >>> frame["batch_size"].tolist(), frame["lr"].tolist()
    ([128, 128, 128, 128, 128], [1.0, 1.0, 0.2, 0.2, 0.04])
    """

    scheduled: ClassVar[bool] = True

    initial: int = 128
    delay: float = 5
    factor: float = 2

    def __post_init__(self) -> None:
        GeoDamp(self.initial, self.delay, self.factor)  # checks the settings

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        return instead_of_growing(self.initial, _geometric(self, signals)), state


@dataclass(frozen=True)
class PadaDamp(Policy):
    r"""Add rows at a constant rate: the growth that Theorem 3 of the dissertation suggests.

    .. math:: B_k = B_0 + \lceil m k \rceil

    for model update :math:`k`. If the loss decays like :math:`1/(k+1)`, as it does for convex
    functions, this is :class:`AdaDamp` without looking at the loss.

    Parameters
    ----------
    initial : int
        Batch size :math:`B_0` of the first update.
    rate : float
        Rows :math:`m` to add per update.

    References
    ----------
    S. Sievert, *Improving the convergence of SGD through adaptive batch sizes*, arXiv:1910.08222,
    and footnote 18 of the dissertation.

    Examples
    --------
    >>> from accelerando.policies import PadaDamp, replay
    >>> replay(PadaDamp(initial=8, rate=0.5), {"loss": [1.0] * 4})["batch_size"].tolist()
    [8, 9, 9, 10, 10]
    """

    scheduled: ClassVar[bool] = True

    initial: int = 128
    rate: float = 0.1

    def __post_init__(self) -> None:
        check_integer(self, "initial", self.initial)
        check_number(self, "rate", self.rate, above=0)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        return Decision(self.initial + self.rate * signals["update"]), state
