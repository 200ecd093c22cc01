"""Forecast: how many more answers a target accuracy takes, from the held-out accuracy so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Estimate", "Point", "answers_to_go"]

Array = NDArray[np.float64]

_NEAR = 0.02
_MOST = 100.0
_WIDEST = 4.0
_DRAWS = 200
_FEWEST = 4  # points
_FEWEST_TESTS = 300


class Point(NamedTuple):
    """Held-out accuracy after a number of answers, and the number of answers it was tested on."""

    answers: float
    accuracy: float
    tested: int


@dataclass(frozen=True)
class Estimate:
    """Result of :func:`answers_to_go`.

    Attributes
    ----------
    target : float or None
        The accuracy to reach: the given one, or two points below the asymptote.
    to_go : int or None
        Number of further answers; None if it cannot be estimated.
    band : tuple of int, or None
        The 80 % confidence interval of the number of further answers.
    sentence : str
        The result in words.
    """

    target: float | None
    to_go: int | None
    band: tuple[int, int] | None
    sentence: str


def answers_to_go(points: Sequence[Point], answers: int, target: float | None = None) -> Estimate:
    """Extrapolate the curve ``accuracy(n) = a − b/n`` to the target.

    The error of positions estimated from n answers decreases as ``1/√n``. The loss of accuracy is
    of second order: the number of queries that are predicted differently is proportional to the
    error, and each of them is nearly a tie whose loss is proportional to the error, too. So the
    loss decreases as ``1/n``. Weighted least squares gives a and b. A parametric bootstrap, which
    draws the accuracies from binomial distributions, gives the confidence interval. If the interval
    is wide, the result has no number.

    Parameters
    ----------
    points : sequence of Point
    answers : int
        Number of answers so far.
    target : float, optional
        Two points of accuracy below the asymptote a by default: more answers would change little.

    Examples
    --------
    >>> curve = [Point(n, 0.84 - 40 / n, 4000) for n in (200, 400, 600, 800, 1000)]
    >>> answers_to_go(curve, 1000, target=0.82).to_go
    1000
    """
    if len(points) < _FEWEST or sum(point.tested for point in points) < _FEWEST_TESTS:
        sentence = "There are too few random answers to estimate how many more are needed."
        return Estimate(target, None, None, sentence)
    n, accuracy, tested = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    needed, level = _needed(n, accuracy, tested, target)
    aim = level - _NEAR if target is None else target
    rng = np.random.default_rng(0)
    draws = rng.binomial(tested.astype(int), np.clip(accuracy, 0.0, 1.0), (_DRAWS, len(n))) / tested
    again = np.array([_needed(n, row, tested, target)[0] for row in draws])
    most = _MOST * max(answers, 1)
    low, high = (float(v) for v in np.quantile(np.minimum(again, most), [0.1, 0.9]))
    band = _rounded(max(0.0, low - answers)), _rounded(max(0.0, high - answers))
    if low >= most:  # even the most favorable curves stay below the target
        sentence = (
            f"An accuracy of {_percent(aim)} may be out of reach: the curve levels off at "
            f"{_percent(level)}."
        )
        return Estimate(aim, None, None, sentence)
    if not needed <= most or high > _WIDEST * max(low, answers):
        sentence = (
            "The accuracy is not known well enough yet to estimate how many answers are needed."
        )
        return Estimate(target, None, None, sentence)
    to_go = _rounded(max(0.0, needed - answers))
    if to_go == 0 and target is None:
        sentence = (
            f"The accuracy has leveled off near {_percent(level)}: more answers change little."
        )
    elif to_go == 0:
        sentence = f"The target accuracy of {_percent(aim)} is about reached."
    else:
        low_high = f"({band[0]:,} to {band[1]:,})"
        sentence = f"About {to_go:,} more answers {low_high} for an accuracy of {_percent(aim)}."
    return Estimate(aim, to_go, band, sentence)


def _needed(n: Array, accuracy: Array, tested: Array, target: float | None) -> tuple[float, float]:
    """Return the number of answers at which the fitted curve reaches the target, and its level."""
    x = 1.0 / n
    weight = tested / max(float(tested.sum()), 1.0)
    middle_x, middle_y = float(weight @ x), float(weight @ accuracy)
    spread = float(weight @ (x - middle_x) ** 2)
    slope = (
        0.0 if spread == 0 else float(weight @ ((x - middle_x) * (accuracy - middle_y))) / spread
    )
    slope = min(slope, 0.0)  # more answers never hurt
    level = min(middle_y - slope * middle_x, 1.0)
    gap = _NEAR if target is None else level - target
    if gap <= 0:
        return float("inf"), level
    return -slope / gap, level


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _rounded(value: float) -> int:
    """Round to two digits; more would suggest a precision that the estimate does not have."""
    if value < 1:
        return 0
    unit = 10.0 ** max(0, int(np.floor(np.log10(value))) - 1)
    return int(round(value / unit) * unit)
