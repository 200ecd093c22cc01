"""Noise policies: the batch size follows the noise in the gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from accelerando._decisions import Decision, Policy, Signals, State
from accelerando._validation import check_integer, check_number
from accelerando.monitor import GradientNoiseScale, GradientVariance, Monitor


def step_towards(size: float, wanted: float, growth: float) -> float:
    """Return the wanted size, but at most `growth` times larger or smaller than `size`.

    >>> step_towards(100, 1000, growth=2.0), step_towards(100, 90, growth=2.0)
    (200.0, 90)
    """
    return min(max(wanted, size / growth), size * growth)


@dataclass(frozen=True)
class NoiseScale(Policy):
    r"""The batch size follows the gradient noise scale.

    .. math:: B \to \text{share} \cdot B_\text{noise}

    Below the noise scale a batch twice as large takes nearly twice the step in one update; above
    it more rows gain nothing. This is the sample policy of KungFu (Listing 1 of Mai et al.) with
    bounds: one decision changes the batch by at most the factor `growth`, after at least `dwell`
    updates, and by at least 5 %. The policy ignores an estimate whose error exceeds `surest`. While
    only a lower bound of the noise scale is known, the batch grows to that bound.

    Pass it in ``policies=``, or as ``batch_size=NoiseScale(initial=64)``.

    Parameters
    ----------
    initial : int
        Batch size of the first updates, when given as ``batch_size``.
    share : float
        Batch size per noise scale.
    growth : float
        The largest factor of one decision.
    dwell : int
        Updates between two decisions.
    smallest, largest : int or None
        Bounds of the batch; `smallest` is the first batch size if not given.
    surest : float
        The largest relative standard error of an estimate that the policy uses.

    References
    ----------
    S. McCandlish et al., *An empirical model of large-batch training*, arXiv:1812.06162.

    L. Mai et al., *Taming hyper-parameters in deep learning systems*, ACM SIGOPS Operating
    Systems Review 53, 2019.

    Examples
    --------
    >>> from accelerando.policies import NoiseScale, Signals
    >>> signals = Signals({"update": 50, "wanted_batch_size": 128, "noise_scale": 1000.0,
    ...                    "noise_scale_error": 0.1, "noise_scale_low": 800.0})
    >>> NoiseScale(growth=2.0)(signals).batch_size
    256.0
    """

    initial: int = 128
    share: float = 1.0
    growth: float = 2.0
    dwell: int = 20
    smallest: int | None = None
    largest: int | None = None
    surest: float = 0.5

    needs: ClassVar[tuple[str, ...]] = GradientNoiseScale.signals
    occasional: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer(self, "initial", self.initial)
        for name in ("dwell", "share", "surest"):
            check_number(self, name, getattr(self, name), above=0)
        check_number(self, "growth", self.growth, above=1)
        for name in ("smallest", "largest"):
            check_number(self, name, getattr(self, name), above=0, also={None: "None (no bound)"})

    def monitors(self) -> tuple[Monitor, ...]:
        return (GradientNoiseScale(),)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        state = state or {"first": signals["wanted_batch_size"], "last": 0}
        if signals["update"] - state["last"] < self.dwell:
            return None, state
        size = signals["wanted_batch_size"]
        scale, low = signals["noise_scale"], signals["noise_scale_low"]
        if signals["noise_scale_error"] <= self.surest:
            wanted = self.share * scale
        elif self.share * low > size:
            wanted = self.share * low
        else:
            return None, state
        return _moved(self, size, wanted, signals, state)


def _moved(
    policy: NoiseScale | NormTest, size: float, wanted: float, signals: Signals, state: State
) -> tuple[Decision | None, State]:
    """Return a decision for the wanted size within its bounds, or None for a change below 5 %."""
    smallest = policy.smallest if policy.smallest is not None else state["first"]
    wanted = max(wanted, smallest)
    if policy.largest is not None:
        wanted = min(wanted, policy.largest)
    rows = float(math.ceil(step_towards(size, wanted, policy.growth) - 1e-9))
    if abs(rows - size) < 0.05 * size:
        return None, state
    return Decision(batch_size=rows), {**state, "last": int(signals["update"])}


@dataclass(frozen=True)
class NormTest(Policy):
    r"""Enlarge the batch when the noise of its gradient exceeds the gradient's norm.

    The batch is large enough if

    .. math:: \frac{\operatorname{tr} \Sigma}{B} \le \theta^2 \|G\|^2,

    and otherwise grows to :math:`\operatorname{tr} \Sigma / (\theta^2 \|G\|^2)`, at most by the
    factor `growth` at a time. It never shrinks. Pass it in ``policies=``, or as
    ``batch_size=NormTest(initial=64)``.

    Parameters
    ----------
    initial : int
        Batch size of the first updates, when given as ``batch_size``.
    theta : float
        The noise allowed, relative to the gradient.
    growth : float
        The largest factor of one decision.
    dwell : int
        Updates between two decisions.
    largest : int or None
        Bound of the batch.

    References
    ----------
    R. Byrd et al., *Sample size selection in optimization methods for machine learning*,
    Mathematical Programming 134, 2012, equation (3.6).

    Examples
    --------
    >>> from accelerando.policies import NormTest, Signals
    >>> signals = Signals({"update": 50, "wanted_batch_size": 128, "gradient_variance": 200.0,
    ...                    "gradient_square": 1.0})
    >>> NormTest(theta=1.0)(signals).batch_size
    200.0
    """

    initial: int = 128
    theta: float = 1.0
    growth: float = 2.0
    dwell: int = 20
    largest: int | None = None

    needs: ClassVar[tuple[str, ...]] = GradientVariance.signals
    occasional: ClassVar[bool] = True
    smallest: ClassVar[int | None] = 1

    def __post_init__(self) -> None:
        check_integer(self, "initial", self.initial)
        for name in ("dwell", "theta"):
            check_number(self, name, getattr(self, name), above=0)
        check_number(self, "growth", self.growth, above=1)
        check_number(self, "largest", self.largest, above=0, also={None: "None (no bound)"})

    def monitors(self) -> tuple[Monitor, ...]:
        return (GradientVariance(),)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        state = state or {"first": signals["wanted_batch_size"], "last": 0}
        if signals["update"] - state["last"] < self.dwell:
            return None, state
        size = signals["wanted_batch_size"]
        allowed = self.theta**2 * signals["gradient_square"]
        if not signals["gradient_variance"] / size > allowed or allowed <= 0.0:
            return None, state
        return _moved(self, size, signals["gradient_variance"] / allowed, signals, state)
