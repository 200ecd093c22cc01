"""Gradient noise scale: variance and squared gradient, followed by filters that allow drift."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from accelerando._deprecation import warn_deprecated
from accelerando._validation import check_integer
from accelerando.monitor._moments import moments
from accelerando.monitor._monitor import UNKNOWN, Monitor, Observation, State, blend
from accelerando.monitor._trend import begin, estimate, measured, predicted

_FEWEST = 8  # observations before their scatter is an estimate
_SCATTER_MEMORY = 30  # observations over which the scatter is averaged
_KNOWN = 0.5  # the largest relative standard error of a noise scale that is known
_SIDE = 2.2  # standard errors of the lower bound: 95 % with heavy tails


@dataclass(frozen=True)
class GradientNoiseScale(Monitor):
    r"""The batch size above which larger batches gain little: variance over squared gradient.

    .. math:: B_\text{noise} = \frac{\operatorname{tr} \Sigma}{\|g\|^2}

    :math:`\Sigma` is the covariance of the gradients of single rows, :math:`g` the gradient on the
    training set. Both are estimated without bias in every measured update: from the squared
    gradient norms of all rows where hooks can compute them, otherwise from micro-batches, ranks, or
    two halves of the batch, and their mean.

    Both drift while the model learns, and one update tells little: when the batch is much smaller
    than the noise scale, :math:`\|g\|^2` is much smaller than its noise. So each of them is
    followed by Kalman filters. The state is the logarithm and its slope (a local linear trend).
    Three filters with different rates of drift are weighted by how well they predict. The noise of
    a measurement is estimated from successive differences, which a trend does not distort. The
    stated error holds the noise, the drift since then, and the disagreement of the filters.

    Parameters
    ----------
    every : int or None
        The number of updates between two measurements. None measures the first hundred updates,
        and up to a thousand while the noise scale is unknown; from there on as often as costs about
        two percent of the time, by a count of arithmetic and calls: every update of a large dense
        net, one in about fifty of a small one. Where only ranks or micro-batches can be compared,
        they are compared in every update, and halves of a batch in every 25th.
    error, shortest, longest : float
        Deprecated and without effect: the filters find their memory themselves.

    Notes
    -----
    Signals: ``noise_scale``, unknown (``nan``) until its relative standard error is at most one
    half; ``noise_scale_error``, that error, for the logarithm; ``noise_scale_low``, a lower bound
    known from the eighth observation on. It is built for a confidence of 95 %, and lags behind a
    scale that falls quickly.

    The estimate assumes that a batch is a random draw. In the second half of an epoch, rows that
    have not come yet have larger gradients than those that have: where a model memorizes its data,
    :math:`\|g\|^2` is overestimated, and the noise scale too small.

    References
    ----------
    S. McCandlish et al., *An empirical model of large-batch training*, arXiv:1812.06162,
    appendix A.1.

    G. Gray et al., *Normalization layer per-example gradients are sufficient to predict gradient
    noise scale in transformers*, arXiv:2411.00999.

    Examples
    --------
    >>> from accelerando.monitor import GradientNoiseScale, watch
    >>> rows = watch(GradientNoiseScale(), losses=[1.0] * 40, batch_size=64,
    ...              grad_square=2.0, parts=2, parts_square=3.0)
    >>> round(rows[-1]["noise_scale"], 3)  # 64 (3 - 2) / (2 - 1)
    64.0
    """

    error: Any = field(default=None, repr=False)
    shortest: Any = field(default=None, repr=False)
    longest: Any = field(default=None, repr=False)
    every: int | None = None

    signals: ClassVar[tuple[str, ...]] = ("noise_scale", "noise_scale_error", "noise_scale_low")
    looks_at_parts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("error", "shortest", "longest"):
            if getattr(self, name) is not None:
                warn_deprecated(
                    f"GradientNoiseScale({name}=...)",
                    "Leave it out: the memory of the estimate follows the noise and the drift.",
                    stacklevel=4,
                )
        check_integer(self, "every", self.every, also={None: "None (as often as costs little)"})

    def observe(self, seen: Observation, state: State) -> tuple[tuple[float, ...], State]:
        found = moments(seen)
        if found is None or not 0.0 < found.variance < math.inf:
            return _known(state), state
        x, y = found
        noise = x / seen.batch_size  # of the batch's gradient; the unit of y, which may be negative
        if not state or "variance" not in state:
            first = {
                "count": 1.0,
                "update": float(seen.update),
                "variance": begin(math.log(x), 1.0),
                "square": begin(math.log(max(y, 0.3 * noise)), 2.0),
                "x_scatter": 0.5,
                "y_scatter": 4.0,
                "last_x": 1.0,
                "last_y": y / noise,
            }
            return _known(first), first
        count = state["count"] + 1.0
        gap = max(1, int(seen.update - state["update"]))
        variance, square = (predicted(state[name], gap) for name in ("variance", "square"))
        usual = math.exp(estimate(variance).mean)
        noise = usual / seen.batch_size
        dx, dy = x / usual - state["last_x"], y / noise - state["last_y"]
        x_scatter = blend(state["x_scatter"], 0.5 * dx * dx, count, _SCATTER_MEMORY)
        y_scatter = blend(state["y_scatter"], 0.5 * dy * dy, count, _SCATTER_MEMORY)
        after = {
            "count": count,
            "update": float(seen.update),
            "variance": measured(variance, x, x_scatter * usual * usual),
            "square": measured(square, y, y_scatter * noise * noise),
            "x_scatter": x_scatter,
            "y_scatter": y_scatter,
            "last_x": x / usual,
            "last_y": y / noise,
        }
        return _known(after), after


def _known(state: State) -> tuple[float, float, float]:
    """Return noise scale, relative standard error and lower bound."""
    if state.get("count", 0.0) < _FEWEST or "variance" not in state:  # of an earlier version
        return UNKNOWN, UNKNOWN, UNKNOWN
    variance, square = estimate(state["variance"]), estimate(state["square"])
    log = variance.mean - square.mean
    error = math.sqrt(variance.variance + square.variance)
    low = math.exp(log - _SIDE * error)
    if error > _KNOWN:
        return UNKNOWN, UNKNOWN, low
    return math.exp(log), error, low
