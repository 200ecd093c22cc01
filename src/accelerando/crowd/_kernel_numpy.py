"""Scores of a block of pairs for many heads at once, in NumPy.

The probability ``pᵢ(a, b)`` does not depend on the head. A block of pairs therefore needs *one*
matrix of probabilities P and one of entropies, shared by all heads, and the sums over places become
two matrix products

    mixed = τ · Pᵀ,   known = τ · h₂(P)ᵀ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Single = NDArray[np.float32]

# Keeps logarithms finite; too small to change a score at single precision.
_SMALLEST = 1e-12


def binary_entropy(p: Floats) -> Floats:
    """Return ``−p log p − (1 − p) log(1 − p)``, in nats; 0 at 0 and 1."""
    q = 1.0 - p
    return np.asarray(-p * np.log(np.maximum(p, _SMALLEST)) - q * np.log(np.maximum(q, _SMALLEST)))


def score_block(log_odds: Single, lapse: float, weights: Single) -> Single:
    """Return the information gain of every head (row) and pair (column).

    Parameters
    ----------
    log_odds : array of shape (n_pairs, n_places)
        Log-odds of the answer "a" if the head were at that place. Overwritten.
    lapse : float
    weights : array of shape (n_heads, n_places)
        The posterior τ.
    """
    # In place, one pass after the other, so that the block stays in the cache.
    chosen = np.clip(log_odds, -80.0, 80.0, out=log_odds)
    np.negative(chosen, out=chosen)
    np.exp(chosen, out=chosen)
    chosen += 1.0
    np.reciprocal(chosen, out=chosen)
    if lapse:
        chosen *= np.float32(1.0 - 2.0 * lapse)
        chosen += np.float32(lapse)
    scores: Single = _entropy(weights @ chosen.T)
    scores -= weights @ _entropy(chosen).T
    return scores


def _entropy(p: Single) -> Single:
    """Return :func:`binary_entropy` with fewer temporary arrays."""
    q = np.float32(1.0) - p
    np.maximum(q, np.float32(_SMALLEST), out=q)
    result: Single = np.asarray(np.log(q))
    result *= q
    np.maximum(p, np.float32(_SMALLEST), out=q)
    other = np.log(q)
    other *= q
    result += other
    np.negative(result, out=result)
    return result
