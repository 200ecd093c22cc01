"""Gradient noise scale, averaged over a memory whose length adapts to the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from accelerando._validation import check, check_integer, check_number, is_number
from accelerando.monitor._moments import moments
from accelerando.monitor._monitor import (
    UNKNOWN,
    Monitor,
    Observation,
    State,
    blend,
)

_FEWEST = 8  # observations before their scatter is an estimate
_SCATTER_MEMORY = 100  # observations over which the scatter is averaged
_SIGNIFICANT = 2.0  # standard errors by which the signal must exceed the noise


@dataclass(frozen=True)
class GradientNoiseScale(Monitor):
    r"""The batch size above which larger batches gain little: variance over squared gradient.

    .. math:: B_\text{noise} = \frac{\operatorname{tr} \Sigma}{\|g\|^2}

    :math:`\Sigma` is the covariance of the gradients of single rows, :math:`g` the gradient on the
    training set. Both are estimated without bias in every update, from the gradients of the ranks
    and their mean, or on a single rank from the gradients of micro-batches. Numerator and
    denominator are averaged separately, then divided.

    When the batch is much smaller than the noise scale, :math:`\|g\|^2` is much smaller than its
    noise, and only a long average helps. So the memory is as long as the relative standard error
    `error` of the denominator requires: about
    :math:`(B_\text{noise} / B)^2 / \text{error}^2` updates, divided by the number of directions in
    which there is noise. The scatter is estimated from successive differences, which a trend does
    not distort.

    Parameters
    ----------
    error : float
        The target of the relative standard error. A smaller one needs a longer memory, which lags
        behind a growing noise scale.
    shortest, longest : float
        The bounds of the memory, in observations.
    every : int
        The number of updates between two measurements, if a measurement costs time: on a single
        rank that processes a batch at once, a measurement processes it in two halves. Where there
        are several ranks or micro-batches anyway, every update is measured.

    Notes
    -----
    Signals: ``noise_scale``, unknown (``nan``) until the gradient exceeds its noise by two standard
    errors, and never negative; ``noise_scale_error``, its relative standard error;
    ``noise_scale_low``, a lower bound with a confidence of about 97 %, known from the eighth
    observation on.

    References
    ----------
    S. McCandlish et al., *An empirical model of large-batch training*, arXiv:1812.06162,
    appendix A.1.

    Examples
    --------
    >>> from accelerando.monitor import GradientNoiseScale, watch
    >>> rows = watch(GradientNoiseScale(), losses=[1.0] * 20, batch_size=64,
    ...              grad_square=2.0, parts=2, parts_square=3.0)
    >>> rows[-1]["noise_scale"]  # 64 (3 - 2) / (2 - 1)
    64.0
    """

    error: float = 0.03
    shortest: float = 20.0
    longest: float = 10_000.0
    every: int = 25

    signals: ClassVar[tuple[str, ...]] = ("noise_scale", "noise_scale_error", "noise_scale_low")
    looks_at_parts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number(self, "error", self.error, above=0, below=1)
        check_number(self, "shortest", self.shortest, minimum=1)
        enough = is_number(self.longest) and self.longest >= self.shortest
        allowed = f"a number of at least shortest={self.shortest!r}, in observations"
        check(enough, self, "longest", allowed, self.longest)
        check_integer(self, "every", self.every)

    def observe(self, seen: Observation, state: State) -> tuple[tuple[float, ...], State]:
        found = moments(seen)
        if found is None:
            return _ratio(state), state
        x, y = found
        if not state:
            state = {"count": 1.0, "x": x, "y": y, "weights": 1.0, "last_x": x, "last_y": y}
            return _ratio(state), {**state, "xx": 0.0, "xy": 0.0, "yy": 0.0}
        count = state["count"] + 1.0
        dx, dy = x - state["last_x"], y - state["last_y"]
        differences = count - 1.0  # including this one
        xx = blend(state["xx"], 0.5 * dx * dx, differences, _SCATTER_MEMORY)
        xy = blend(state["xy"], 0.5 * dx * dy, differences, _SCATTER_MEMORY)
        yy = blend(state["yy"], 0.5 * dy * dy, differences, _SCATTER_MEMORY)
        weight = max(1.0 / count, 2.0 / (self._memory(state["y"], yy) + 1.0))
        return _ratio(
            after := {
                "count": count,
                "x": state["x"] + weight * (x - state["x"]),
                "y": state["y"] + weight * (y - state["y"]),
                # The sum of the squared weights: the inverse of the average's effective length.
                "weights": (1.0 - weight) ** 2 * state["weights"] + weight * weight,
                "xx": xx,
                "xy": xy,
                "yy": yy,
                "last_x": x,
                "last_y": y,
            }
        ), after

    def _memory(self, y: float, scatter: float) -> float:
        """Return the number of observations for which the denominator has the target error."""
        if y <= 0.0:
            return self.longest
        wanted = scatter / (self.error * y) ** 2
        return min(self.longest, max(self.shortest, wanted))


def _ratio(state: State) -> tuple[float, float, float]:
    """Return noise scale, relative standard error and lower bound."""
    if not state or state["count"] < _FEWEST:
        return UNKNOWN, UNKNOWN, UNKNOWN
    x, y, weights = state["x"], state["y"], state["weights"]
    error = math.sqrt(weights * state["yy"])
    highest = max(y, 0.0) + _SIGNIFICANT * error
    low = x / highest if highest > 0.0 else UNKNOWN
    if y <= 0.0 or y < _SIGNIFICANT * error:
        return UNKNOWN, UNKNOWN, low
    relative = weights * state["yy"] / y**2
    if x > 0.0:  # the error of a quotient, to first order
        relative += weights * (state["xx"] / x**2 - 2.0 * state["xy"] / (x * y))
    return x / y, math.sqrt(max(0.0, relative)), low
