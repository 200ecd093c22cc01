"""The information gain of one query, computed literally from its formula: a slow reference."""

from __future__ import annotations

from math import exp, log

from accelerando.crowd._posterior import Posterior


def information_gain(head: int, left: int, right: int, posterior: Posterior) -> float:
    """``h₂(Σᵢ τᵢ pᵢ) − Σᵢ τᵢ h₂(pᵢ)`` for one query, place by place.

    Examples
    --------
    >>> import numpy as np
    >>> from accelerando.crowd._noise import STE
    >>> positions = np.array([[0.0], [1.0], [2.0]])
    >>> posterior = Posterior(positions, positions, np.zeros((3, 3)), STE())
    >>> round(information_gain(0, 1, 2, posterior), 6)
    0.195157
    """
    logs = [posterior.temper * float(value) for value in posterior.log_posterior[head]]
    raw = [exp(value - max(logs)) for value in logs]
    probabilities = [value / sum(raw) for value in raw]

    expected_p = 0.0
    expected_entropy = 0.0
    for place, tau in zip(posterior.places, probabilities, strict=True):
        to_left = ((place - posterior.positions[left]) ** 2).sum()
        to_right = ((place - posterior.positions[right]) ** 2).sum()
        p = float(posterior.noise.probability(to_left, to_right, posterior.lapse))
        expected_p += tau * p
        expected_entropy += tau * _entropy(p)
    return _entropy(expected_p) - expected_entropy


def _entropy(p: float) -> float:
    return sum(-q * log(q) for q in (p, 1.0 - p) if q > 0.0)
