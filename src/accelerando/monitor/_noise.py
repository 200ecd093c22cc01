"""How noisy gradients are: the noise scale, with a memory as long as the noise demands."""

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
    moments,
    no_parts,
)

_FEWEST = 8  # observations before their scatter says anything
_SCATTER_MEMORY = 100  # observations over which the scatter is averaged
_SURE = 2.0  # standard errors by which the signal must stand out of the noise


@dataclass(frozen=True)
class GradientNoiseScale(Monitor):
    r"""The batch size above which larger batches stop paying: variance over squared gradient.

    .. math:: B_\text{noise} = \frac{\operatorname{tr} \Sigma}{\|g\|^2}

    :math:`\Sigma` is the covariance of the gradients of single rows, :math:`g` the gradient on the
    training set. Both are estimated without bias in every update (see
    :func:`accelerando.monitor.moments`), from the gradients of the ranks against their mean, or on
    a single rank from the gradients of micro-batches. Numerator and denominator are averaged
    apart, and divided last.

    When the batch is much smaller than the noise scale, :math:`\|g\|^2` drowns in the noise and
    only the length of the average helps. So the memory is as long as is needed for the relative
    standard error `error` of the denominator, which takes about
    :math:`(B_\text{noise} / B)^2 / \text{error}^2` updates, divided by the number of directions in
    which there is noise. The scatter is taken from successive differences, which a trend does not
    disturb.

    Parameters
    ----------
    error : float
        The relative standard error to aim at. A smaller one needs a longer memory, which lags
        behind a noise scale that grows.
    shortest, longest : float
        Bounds of the memory, in observations.
    every : int
        Where looking costs something, look in every so many updates only: on a single rank whose
        batch goes through the model in one piece, it then goes in two halves. Ranks and
        micro-batches that exist anyway are looked at in every update.

    Notes
    -----
    Signals: ``noise_scale``, unknown (``nan``) until the gradient stands out of the noise by two
    standard errors, and never negative; ``noise_scale_error``, its relative standard error;
    ``noise_scale_low``, what it exceeds with a probability of about 97 %, known from the eighth
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
        if not 0 < self.error < 1:
            raise ValueError(
                "The 'error' parameter of GradientNoiseScale is a relative standard error and must "
                f"lie between 0 and 1. Got {self.error!r} instead."
            )
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(
                "GradientNoiseScale needs 1 <= shortest <= longest, in observations. Got "
                f"shortest={self.shortest!r}, longest={self.longest!r}."
            )
        if not is_whole(self.every, 1):
            raise ValueError(
                "The 'every' parameter of GradientNoiseScale must be a whole number of at least "
                f"1. Got {self.every!r} instead."
            )

    def undefined(self, setting: Setting) -> str | None:
        return no_parts(setting)

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
        seen_before = count - 1.0  # differences so far, this one included
        xx = blend(state["xx"], 0.5 * dx * dx, seen_before, _SCATTER_MEMORY)
        xy = blend(state["xy"], 0.5 * dx * dy, seen_before, _SCATTER_MEMORY)
        yy = blend(state["yy"], 0.5 * dy * dy, seen_before, _SCATTER_MEMORY)
        weight = max(1.0 / count, 2.0 / (self._memory(state["y"], yy) + 1.0))
        return _ratio(
            after := {
                "count": count,
                "x": state["x"] + weight * (x - state["x"]),
                "y": state["y"] + weight * (y - state["y"]),
                # The sum of the squared weights of the average: one over its effective length.
                "weights": (1.0 - weight) ** 2 * state["weights"] + weight * weight,
                "xx": xx,
                "xy": xy,
                "yy": yy,
                "last_x": x,
                "last_y": y,
            }
        ), after

    def _memory(self, y: float, scatter: float) -> float:
        """Return how many observations bring the denominator's error down to the one wanted."""
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
    highest = max(y, 0.0) + _SURE * error
    low = x / highest if highest > 0.0 else UNKNOWN
    if y <= 0.0 or y < _SURE * error:
        return UNKNOWN, UNKNOWN, low
    relative = weights * state["yy"] / y**2
    if x > 0.0:  # the error of a quotient, to first order
        relative += weights * (state["xx"] / x**2 - 2.0 * state["xy"] / (x * y))
    return x / y, math.sqrt(max(0.0, relative)), low
