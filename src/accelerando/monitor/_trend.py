"""Trend: follow a positive quantity that drifts, from noisy measurements of it.

The logarithm of the quantity is a local linear trend: a level and a slope that both wander. How
fast they wander is not known. So a small bank of extended Kalman filters runs, one for each rate of
drift, weighted by how well each of them has predicted the latest measurements. The spread between
the filters is part of the stated error, and so is the lag: a slow filter behind a quantity that
moves disagrees with the fast ones, and loses weight.
"""

from __future__ import annotations

import math
from typing import NamedTuple

DRIFTS = (1e-5, 3e-4, 4e-3)
"""Variances of the wandering of the logarithm, per update."""

_KEEP = 0.98  # of a slope, per update: extrapolation fades
_SLOPE = 0.01  # standard deviation of a slope's step relative to that of the level
_FORGET = 0.98  # of the weights' evidence, per measurement
_MOVE = 1.0  # the largest change of a logarithm by one measurement
_LEAST = 1e-4  # weight that a filter keeps, so that it can come back

# A filter is level, slope, their variances and covariance, and the logarithm of its weight.
Bank = list[float]
_FIELDS = 6


class Estimate(NamedTuple):
    """The logarithm of a quantity: its mean and its variance."""

    mean: float
    variance: float


def begin(log: float, variance: float) -> Bank:
    """Return a bank that starts at a logarithm with this variance.

    >>> estimate(begin(0.0, 4.0))
    Estimate(mean=0.0, variance=4.0)
    """
    return [log, 0.0, variance, 0.0, 0.0, 0.0] * len(DRIFTS)


def predicted(bank: Bank, updates: int) -> Bank:
    """Return the bank after updates without a measurement."""
    keep = _KEEP**updates
    reach = (1.0 - keep) / (1.0 - _KEEP)
    after: Bank = []
    for number, drift in enumerate(DRIFTS):
        level, slope, p, pq, q, weight = bank[number * _FIELDS : (number + 1) * _FIELDS]
        step = drift * updates
        after += (
            level + reach * slope,
            keep * slope,
            p + 2.0 * reach * pq + reach * reach * q + step,
            keep * (pq + reach * q),
            keep * keep * q + _SLOPE * _SLOPE * step,
            weight,
        )
    return after


def measured(bank: Bank, value: float, noise: float) -> Bank:
    """Return the bank after a measurement of the quantity itself, which has a noise variance.

    The value may be negative: it is the quantity plus noise.
    """
    after: Bank = []
    for start in range(0, len(bank), _FIELDS):
        level, slope, p, pq, q, weight = bank[start : start + _FIELDS]
        size = math.exp(level)
        spread = size * size * p + noise
        off = value - size
        weight = _FORGET * weight - 0.5 * (off * off / spread + math.log(spread))
        move = max(-_MOVE, min(_MOVE, p * size * off / spread))
        # The slope of the exponential at the new level: a Gauss-Newton step.
        size = math.exp(level + move)
        gain = size * size / (size * size * p + noise)
        moved = move / p if p > 0.0 else 0.0
        after += (
            level + move,
            slope + pq * moved,
            p - gain * p * p,
            pq - gain * p * pq,
            q - gain * pq * pq,
            weight,
        )
    best = max(after[_FIELDS - 1 :: _FIELDS])
    for start in range(_FIELDS - 1, len(after), _FIELDS):
        after[start] = max(after[start] - best, math.log(_LEAST))
    return after


def estimate(bank: Bank) -> Estimate:
    """Return mean and variance of the logarithm over the filters of a bank."""
    weights = [math.exp(weight) for weight in bank[_FIELDS - 1 :: _FIELDS]]
    total = sum(weights)
    levels, variances = bank[::_FIELDS], bank[2::_FIELDS]
    mean = sum(w * level for w, level in zip(weights, levels, strict=True)) / total
    variance = sum(
        w * (p + (level - mean) ** 2)
        for w, p, level in zip(weights, variances, levels, strict=True)
    )
    return Estimate(mean, variance / total)
