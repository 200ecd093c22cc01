"""Progress of training: trend of the loss, throughput, waiting time, spread of the parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from accelerando._validation import check_integer
from accelerando.monitor._monitor import (
    UNKNOWN,
    Averaged,
    Monitor,
    Observation,
    Setting,
    State,
    blend,
)


@dataclass(frozen=True)
class LossTrend(Averaged):
    r"""The smoothed training loss and its slope, by least squares with exponential weights.

    A line is fitted to the losses :math:`L_{k-a}` of :math:`a` updates ago, with weights
    :math:`(1 - 1/\text{memory})^a`.

    Parameters
    ----------
    memory : float
        The number of updates after which the weight of a loss is 1/e.

    Notes
    -----
    Signals: ``loss_average``, the mean level of the fitted line; ``loss_trend``, its slope in loss
    per update, negative while the loss decreases.

    Examples
    --------
    >>> from accelerando.monitor import LossTrend, watch
    >>> rows = watch(LossTrend(memory=10), losses=[5.0 - 0.25 * k for k in range(9)])
    >>> round(rows[-1]["loss_trend"], 6)
    -0.25
    """

    signals: ClassVar[tuple[str, ...]] = ("loss_average", "loss_trend")

    def observe(self, seen: Observation, state: State) -> tuple[tuple[float, ...], State]:
        keep = 1.0 - 1.0 / self.memory
        n, a, aa = state.get("n", 0.0), state.get("a", 0.0), state.get("aa", 0.0)
        y, ay = state.get("y", 0.0), state.get("ay", 0.0)
        # Increase every age by one, multiply the weights by `keep`, then add the newest with age 0.
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
class Throughput(Averaged):
    """Examples per second since the last change of the number of ranks or the batch size.

    Parameters
    ----------
    memory : float
        The number of updates over which it is averaged.

    Notes
    -----
    Signals: ``examples_per_second`` and ``update_seconds``. They are measured by a
    clock: decisions based on them are equal on all ranks, but differ between two runs.

    Examples
    --------
    >>> from accelerando.monitor import Throughput, watch
    >>> watch(Throughput(), losses=[1.0], batch_size=64, seconds=0.5)
    [{'examples_per_second': 128.0, 'update_seconds': 0.5}]
    """

    memory: float = 50.0

    signals: ClassVar[tuple[str, ...]] = ("examples_per_second", "update_seconds")

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
class CommunicationTime(Averaged):
    """The time that ranks wait for each other in an update, and its share; 0 in one process.

    Parameters
    ----------
    memory : float
        The number of updates over which it is averaged.

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
    r"""The variance of the ranks' parameters before an averaging.

    .. math:: S_k = \frac1n \sum_i \|\bar w - w_i\|^2

    Adaptive periodic averaging chooses its period by it. If gradients are averaged in every update,
    all ranks have the same parameters and there is no spread: ``fit`` raises an error.

    Parameters
    ----------
    every : int or None
        None measures before each averaging. A number also measures every `every` updates: for the
        variance between two averagings, V_t of the paper. That needs virtual ranks, whose
        parameters are all in one process.

    Notes
    -----
    Signal: ``parameter_spread``, the last measurement.

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
        check_integer(self, "every", self.every, also={None: "None (before each averaging)"})

    def undefined(self, setting: Setting) -> str | None:
        if setting.averages_parameters:
            return None
        return (
            "measures the distance between the ranks' parameters, and here the ranks average their "
            "gradients in every update and always have the same parameters. Leave it out"
        )

    def observe(self, seen: Observation, state: State) -> tuple[tuple[float, ...], State]:
        if seen.spread is not None:
            state = {"spread": seen.spread}
        return (state.get("spread", UNKNOWN),), state
