"""Policies that follow a plan made before training: they look at the clock, not at the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from accelerando.batch_size._policy import (
    BatchSizePolicy,
    Damping,
    Signals,
    State,
    check_positive,
    check_rows,
    instead_of_growing,
)


@dataclass(frozen=True)
class Constant(BatchSizePolicy):
    """The same batch size for every update.

    Parameters
    ----------
    size : int
        Rows per batch.

    Examples
    --------
    >>> from accelerando.batch_size import Constant, replay
    >>> replay(Constant(64), losses=[1.0, 0.5])
    [64, 64, 64]
    """

    scheduled: ClassVar[bool] = True

    size: int = 128

    def __post_init__(self) -> None:
        check_rows(self, size=self.size)

    def decide(self, signals: Signals, state: State) -> tuple[Damping, State]:
        return Damping(self.size), state


@dataclass(frozen=True)
class FullBatch(BatchSizePolicy):
    """Every example in every update: gradient descent.

    Examples
    --------
    >>> from accelerando.batch_size import FullBatch, replay
    >>> replay(FullBatch(), losses=[1.0], n_examples=1797)
    [1797, 1797]
    """

    scheduled: ClassVar[bool] = True

    def decide(self, signals: Signals, state: State) -> tuple[Damping, State]:
        if signals.n_examples is None:
            raise ValueError(
                "FullBatch has to know how many examples there are, and a stream does not tell. "
                "Use a data set with a length, or another batch_size."
            )
        return Damping(signals.n_examples), state


@dataclass(frozen=True)
class Schedule(BatchSizePolicy):
    """A batch size for every epoch, from a table.

    Parameters
    ----------
    sizes : mapping from epoch to rows
        The size holds from its epoch (counted from 0) until the next entry. Epoch 0 must be there.

    Examples
    --------
    >>> from accelerando.batch_size import Schedule, replay
    >>> replay(Schedule({0: 32, 2: 256}), losses=[1.0, 0.9, 0.8])
    [32, 32, 256, 256]
    """

    scheduled: ClassVar[bool] = True

    sizes: Mapping[int, int]

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, Mapping) or 0 not in self.sizes or min(self.sizes) < 0:
            raise ValueError(
                "The 'sizes' parameter of Schedule must map epochs, counted from 0, to batch "
                f"sizes, and epoch 0 must be among them. Got {self.sizes!r} instead."
            )
        for epoch, size in self.sizes.items():
            check_rows(self, **{f"sizes[{epoch}]": size})

    def decide(self, signals: Signals, state: State) -> tuple[Damping, State]:
        begun = max(epoch for epoch in self.sizes if epoch <= signals.epoch)
        return Damping(self.sizes[begun]), state


def _geometric(initial: int, delay: float, factor: float, epoch: int) -> float:
    return float(initial * factor ** (epoch // delay))


@dataclass(frozen=True)
class GeoDamp(BatchSizePolicy):
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
    >>> from accelerando.batch_size import GeoDamp, replay
    >>> replay(GeoDamp(initial=128, delay=2, factor=5), losses=[1.0] * 4)
    [128, 128, 640, 640, 3200]
    """

    scheduled: ClassVar[bool] = True

    initial: int = 128
    delay: float = 5
    factor: float = 2

    def __post_init__(self) -> None:
        check_rows(self, initial=self.initial)
        check_positive(self, delay=self.delay, factor=self.factor)

    def decide(self, signals: Signals, state: State) -> tuple[Damping, State]:
        return Damping(_geometric(self.initial, self.delay, self.factor, signals.epoch)), state


@dataclass(frozen=True)
class GeoDampLR(BatchSizePolicy):
    """The twin of :class:`GeoDamp` that keeps the batch and divides the learning rate.

    This is ordinary SGD with a stepwise schedule; the noise scale lr / batch size is the same as
    GeoDamp's at every epoch, the number of model updates is not.

    Parameters
    ----------
    initial, delay, factor
        As for :class:`GeoDamp`.

    Examples
    --------
    >>> from accelerando.batch_size import GeoDampLR, replay
    >>> replay(GeoDampLR(initial=128, delay=2, factor=5), losses=[1.0] * 4)
    [128, 128, 128, 128, 128]
    """

    scheduled: ClassVar[bool] = True

    initial: int = 128
    delay: float = 5
    factor: float = 2

    def __post_init__(self) -> None:
        GeoDamp(self.initial, self.delay, self.factor)  # the twin checks the settings they share

    def decide(self, signals: Signals, state: State) -> tuple[Damping, State]:
        grown = Damping(_geometric(self.initial, self.delay, self.factor, signals.epoch))
        return instead_of_growing(self.initial, grown), state


@dataclass(frozen=True)
class PadaDamp(BatchSizePolicy):
    r"""Add rows at a constant rate: the growth that Theorem 3 of the dissertation suggests.

    .. math:: B_k = B_0 + \lceil m k \rceil

    for model update :math:`k`. If the loss decays like :math:`1/(k+1)`, as it does for convex
    functions, this is :class:`AdaDamp` without ever looking at the loss.

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
    >>> from accelerando.batch_size import PadaDamp, replay
    >>> replay(PadaDamp(initial=8, rate=0.5), losses=[1.0] * 4)
    [8, 9, 9, 10, 10]
    """

    scheduled: ClassVar[bool] = True

    initial: int = 128
    rate: float = 0.1

    def __post_init__(self) -> None:
        check_rows(self, initial=self.initial)
        check_positive(self, rate=self.rate)

    def decide(self, signals: Signals, state: State) -> tuple[Damping, State]:
        return Damping(self.initial + self.rate * signals.update), state
