"""How many more answers? Read off the held-out accuracy so far."""

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
    """Held-out accuracy at some number of answers, and how many answers it was tested on."""

    answers: float
    accuracy: float
    tested: int


@dataclass(frozen=True)
class Estimate:
    """What :func:`answers_to_go` says.

    Attributes
    ----------
    target : float or None
        The accuracy to reach: the wished one, or two points below where the curve levels off.
    to_go : int or None
        Answers from now on; None while nothing can be said.
    band : tuple of int, or None
        From cautious to hopeful: the middle 80 % of curves that fit as well.
    sentence : str
    """

    target: float | None
    to_go: int | None
    band: tuple[int, int] | None
    sentence: str


def answers_to_go(points: Sequence[Point], answers: int, target: float | None = None) -> Estimate:
    """Extend the curve ``accuracy(n) = a − b/n`` until it meets the target.

    The error of positions estimated from n answers shrinks as ``1/√n``. It costs accuracy in second
    order: only queries that are nearly ties are predicted differently, as many as the error is
    large, and each of them is a loss as small as the error. So the loss shrinks as ``1/n``. a and b
    come from weighted least squares; the band from fitting again to accuracies drawn anew from
    their binomial distributions. While the band is wide, no number is given: none is better than a
    wild one.

    Parameters
    ----------
    points : sequence of Point
    answers : int
        How many there are now.
    target : float, optional
        By default two points of accuracy below a: more answers would hardly show.

    Examples
    --------
    >>> curve = [Point(n, 0.84 - 40 / n, 4000) for n in (200, 400, 600, 800, 1000)]
    >>> answers_to_go(curve, 1000, target=0.82).to_go
    1000
    """
    if len(points) < _FEWEST or sum(point.tested for point in points) < _FEWEST_TESTS:
        return Estimate(target, None, None, "Too few random answers to estimate how many more.")
    n, accuracy, tested = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    needed, level = _needed(n, accuracy, tested, target)
    aim = level - _NEAR if target is None else target
    rng = np.random.default_rng(0)
    draws = rng.binomial(tested.astype(int), np.clip(accuracy, 0.0, 1.0), (_DRAWS, len(n))) / tested
    again = np.array([_needed(n, row, tested, target)[0] for row in draws])
    most = _MOST * max(answers, 1)
    low, high = (float(v) for v in np.quantile(np.minimum(again, most), [0.1, 0.9]))
    band = _rounded(max(0.0, low - answers)), _rounded(max(0.0, high - answers))
    if low >= most:  # even the hopeful curves stay below
        sentence = (
            f"{_percent(aim)} may be out of reach: the curve levels off at {_percent(level)}."
        )
        return Estimate(aim, None, None, sentence)
    if not needed <= most or high > _WIDEST * max(low, answers):
        sentence = (
            "The accuracy is not yet known well enough to say how many more answers it takes."
        )
        return Estimate(target, None, None, sentence)
    to_go = _rounded(max(0.0, needed - answers))
    if to_go == 0 and target is None:
        sentence = f"It has levelled off near {_percent(level)}: more answers change little."
    elif to_go == 0:
        sentence = f"About as accurate as wished ({_percent(aim)})."
    else:
        low_high = f"({band[0]:,} to {band[1]:,})"
        sentence = f"About {to_go:,} more answers {low_high} for an accuracy of {_percent(aim)}."
    return Estimate(aim, to_go, band, sentence)


def _needed(n: Array, accuracy: Array, tested: Array, target: float | None) -> tuple[float, float]:
    """Answers at which the fitted curve meets the target, and where it levels off."""
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
    """To two digits: more would be a lie."""
    if value < 1:
        return 0
    unit = 10.0 ** max(0, int(np.floor(np.log10(value))) - 1)
    return int(round(value / unit) * unit)
