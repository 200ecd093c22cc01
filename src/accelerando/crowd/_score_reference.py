"""The score of one query, written as its formula is read. Slow; what the fast paths must equal."""

from __future__ import annotations

from math import exp, log

from accelerando.crowd._posterior import Belief


def information_gain(head: int, left: int, right: int, belief: Belief) -> float:
    """``h₂(Σᵢ τᵢ pᵢ) − Σᵢ τᵢ h₂(pᵢ)`` for one query, place by place.

    Examples
    --------
    >>> import numpy as np
    >>> from accelerando.crowd._noise import STE
    >>> positions = np.array([[0.0], [1.0], [2.0]])
    >>> belief = Belief(positions, positions, np.zeros((3, 3)), STE())
    >>> round(information_gain(0, 1, 2, belief), 6)
    0.195157
    """
    logs = [belief.temper * float(value) for value in belief.log_posterior[head]]
    raw = [exp(value - max(logs)) for value in logs]
    posterior = [value / sum(raw) for value in raw]

    expected_p = 0.0
    expected_entropy = 0.0
    for place, tau in zip(belief.places, posterior, strict=True):
        to_left = ((place - belief.positions[left]) ** 2).sum()
        to_right = ((place - belief.positions[right]) ** 2).sum()
        p = float(belief.noise.probability(to_left, to_right, belief.lapse))
        expected_p += tau * p
        expected_entropy += tau * _entropy(p)
    return _entropy(expected_p) - expected_entropy


def _entropy(p: float) -> float:
    return sum(-q * log(q) for q in (p, 1.0 - p) if q > 0.0)
