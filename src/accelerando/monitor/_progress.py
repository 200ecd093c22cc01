"""Where the loss is going, how fast training is, and what of that is waiting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from accelerando._whole import is_whole
from accelerando.monitor._monitor import (
    UNKNOWN,
    Monitor,
    Observation,
    Setting,
    State,
    blend,
    check_memory,
)


@dataclass(frozen=True)
class LossTrend(Monitor):
    r"""The smoothed training loss and its slope, by least squares with a fading memory.

    A line is fitted to the losses :math:`L_{k-a}` of :math:`a` updates ago with the weights
    :math:`(1 - 1/\text{memory})^a`.

    Parameters
    ----------
    memory : float
        Updates after which a loss counts 1/e.

    Notes
    -----
    Signals: ``loss_average``, the fitted line's mean level; ``loss_trend``, its slope in loss per
    update, negative while training gets on.

    Examples
    --------
    >>> from accelerando.monitor import LossTrend, watch
    >>> rows = watch(LossTrend(memory=10), losses=[5.0 - 0.25 * k for k in range(9)])
    >>> round(rows[-1]["loss_trend"], 6)
    -0.25
    """

    memory: float = 100.0

    signals: ClassVar[tuple[str, ...]] = ("loss_average", "loss_trend")

    def __post_init__(self) -> None:
        check_memory(self, self.memory)

    def observe(self, seen: Observation, state: State) -> tuple[tuple[float, ...], State]:
        keep = 1.0 - 1.0 / self.memory
        n, a, aa = state.get("n", 0.0), state.get("a", 0.0), state.get("aa", 0.0)
        y, ay = state.get("y", 0.0), state.get("ay", 0.0)
        # Every age grows by one, then all fades, then the newest comes with age 0.
        n, a, aa, y, ay = (
            keep * n + 1.0,
            keep * (a + n),
            keep * (aa + 2.0 * a + n),
            keep * y + seen.loss,
            keep * (ay + y),
        )
        spread = n * aa - a * a
        slope = (a * y - n * ay) / spread if spread > 1e-9 * n * n else UNKNOWN
        return (y / n, slope), {"n": n, "a": a, "aa": aa, "y": y, "ay": ay}


@dataclass(frozen=True)
class Throughput(Monitor):
    """Examples per second, over the updates since the number of ranks or the batch changed.

    Parameters
    ----------
    memory : float
        Updates over which it is averaged.

    Notes
    -----
    Signals: ``examples_per_second`` and ``update_seconds``. They come from a clock: decisions that
    follow them are the same on all ranks, and not the same in two runs.

    Examples
    --------
    >>> from accelerando.monitor import Throughput, watch
    >>> watch(Throughput(), losses=[1.0], batch_size=64, seconds=0.5)
    [{'examples_per_second': 128.0, 'update_seconds': 0.5}]
    """

    memory: float = 50.0

    signals: ClassVar[tuple[str, ...]] = ("examples_per_second", "update_seconds")

    def __post_init__(self) -> None:
        check_memory(self, self.memory)

    def observe(self, seen: Observation, state: State) -> tuple[tuple[float, ...], State]:
        same = (state.get("ranks"), state.get("rows")) == (seen.ranks, seen.batch_size)
        count = state["count"] if same else 0.0
        seconds = state["seconds"] if same else UNKNOWN
        if math.isfinite(seen.seconds):
            count += 1.0
            before = seconds if count > 1.0 else 0.0
            seconds = blend(before, seen.seconds, count, self.memory)
        state = {
            "ranks": float(seen.ranks),
            "rows": float(seen.batch_size),
            "count": count,
            "seconds": seconds,
        }
        return (seen.batch_size / seconds if seconds > 0.0 else UNKNOWN, seconds), state


@dataclass(frozen=True)
class CommunicationTime(Monitor):
    """How long ranks wait for each other in an update, and the share of it; 0 in one process.

    Parameters
    ----------
    memory : float
        Updates over which it is averaged.

    Notes
    -----
    Signals: ``communication_seconds`` and ``communication_share``.

    Examples
    --------
    >>> from accelerando.monitor import CommunicationTime, watch
    >>> watch(CommunicationTime(), losses=[1.0], seconds=0.5, wait_seconds=0.125)
    [{'communication_seconds': 0.125, 'communication_share': 0.25}]
    """

    memory: float = 50.0

    signals: ClassVar[tuple[str, ...]] = ("communication_seconds", "communication_share")

    def __post_init__(self) -> None:
        check_memory(self, self.memory)

    def observe(self, seen: Observation, state: State) -> tuple[tuple[float, ...], State]:
        if math.isfinite(seen.seconds) and math.isfinite(seen.wait_seconds):
            count = state.get("count", 0.0) + 1.0
            state = {
                "count": count,
                "all": blend(state.get("all", 0.0), seen.seconds, count, self.memory),
                "wait": blend(state.get("wait", 0.0), seen.wait_seconds, count, self.memory),
            }
        if not state:
            return (UNKNOWN, UNKNOWN), state
        share = state["wait"] / state["all"] if state["all"] > 0.0 else UNKNOWN
        return (state["wait"], share), state


@dataclass(frozen=True)
class ParameterSpread(Monitor):
    r"""How far apart the ranks' parameters have gone between two averagings.

    .. math:: S_k = \frac1n \sum_i \|\bar w - w_i\|^2

    It is what adaptive periodic averaging steers by. Where gradients are averaged in every
    update all ranks have the same parameters and there is no spread: ``fit`` says so.

    Parameters
    ----------
    every : int or None
        None looks when parameters are averaged. A number looks in every so many updates as well:
        for the variance between two averagings, V_t of the paper. One process with virtual ranks
        has all parameters at hand.

    Notes
    -----
    Signal: ``parameter_spread``, as last seen, just before an averaging.

    References
    ----------
    P. Jiang, G. Agrawal, *Adaptive periodic averaging*, arXiv:2007.06134, Algorithm 2.

    Examples
    --------
    >>> from accelerando.monitor import ParameterSpread, watch
    >>> watch(ParameterSpread(), losses=[1.0], spread=0.25)
    [{'parameter_spread': 0.25}]
    """

    every: int | None = None

    signals: ClassVar[tuple[str, ...]] = ("parameter_spread",)

    def __post_init__(self) -> None:
        every = self.every
        if every is None:
            return
        if not is_whole(every, 1):
            raise ValueError(
                "The 'every' parameter of ParameterSpread must be a whole number of at least 1, "
                f"or None. Got {every!r} instead."
            )

    def undefined(self, setting: Setting) -> str | None:
        if setting.averages_parameters:
            return None
        return (
            "is the distance between ranks' parameters, and here ranks average their gradients in "
            "every update and always have the same parameters. Leave it out"
        )

    def observe(self, seen: Observation, state: State) -> tuple[tuple[float, ...], State]:
        if seen.spread is not None:
            state = {"spread": seen.spread}
        return (state.get("spread", UNKNOWN),), state
