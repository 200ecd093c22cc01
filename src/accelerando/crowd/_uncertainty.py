"""Position uncertainty: how far from its fitted position an item may be.

Laplace's approximation: near the best fit the posterior of the positions is normal, and its
precision is the Fisher information of the answers,

    Σ w (∂p/∂z)² / (p (1 − p)) · ∇z ∇zᵀ + ridge,

with the probability p of an answer and the slope ∇z of its margin in the coordinates of its three
items. Shifting and rotating the whole embedding changes no distance, so these directions are taken
out before the information is inverted. An item that no answer mentions has no position at all: its
uncertainty is nan.

References
----------
MacKay, "Information theory, inference and learning algorithms", 2003, chapter 27.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array

from accelerando.crowd._noise import NoiseModel
from accelerando.crowd._triplets import Triplets, as_triplets, as_weights

__all__ = ["position_uncertainty"]

Array = NDArray[np.float64]

# Up to this many coordinates the information of all items is inverted together (0.1 s).
_TOGETHER_UP_TO = 1200
_SMALLEST = 1e-9


def position_uncertainty(
    positions: ArrayLike,
    triplets: ArrayLike,
    noise: NoiseModel,
    *,
    lapse: float = 0.05,
    ridge: float = 1e-3,
    weights: ArrayLike | None = None,
) -> Array:
    """Return the standard deviation of each item's position, per coordinate.

    Parameters
    ----------
    positions : array of shape (n_items, n_components)
        The fitted embedding.
    triplets : array of shape (n_answers, 3)
        The answers it was fitted to, rows ``(head, winner, loser)``.
    noise : NoiseModel
    lapse : float, default=0.05
    ridge : float, default=0.001
        As in :class:`OrdinalEmbedding`.
    weights : array of shape (n_answers,), optional
        Weight of each answer.

    Returns
    -------
    array of shape (n_items,)
        In units of the positions: root of the mean variance over the axes; nan for items that no
        answer mentions. With more than 1,200 coordinates, given the positions of all other items,
        which is less than the whole uncertainty.

    Examples
    --------
    >>> from accelerando.crowd import STE
    >>> answers = [[0, 1, 2], [1, 0, 2], [2, 1, 0]] * 10
    >>> place = np.array([[0.0], [1.0], [3.0], [9.0]])
    >>> found = position_uncertainty(place, answers, STE())
    >>> np.isnan(found).tolist(), bool((found[:3] > 0).all())
    ([False, False, False, True], True)
    """
    x = np.asarray(positions, dtype=np.float64)
    n_items, d = x.shape
    rows = as_triplets(triplets, n_items=n_items)
    share = as_weights(weights, len(rows))
    slopes = _slopes(x, rows, noise)
    information = share * _information(x, rows, noise, lapse)
    asked = np.bincount(rows[share > 0].ravel(), minlength=n_items) > 0
    if n_items * d <= _TOGETHER_UP_TO:
        variance = _together(x, rows, slopes, information, ridge)
    else:
        variance = _one_by_one(n_items, rows, slopes, information, ridge)
    deviation = np.sqrt(np.maximum(variance, 0.0))
    deviation[~asked] = np.nan
    return deviation


def _slopes(x: Array, rows: Triplets, noise: NoiseModel) -> Array:
    """Return ∇z of each answer in the coordinates of head, winner and loser, shape (n, 3, d)."""
    head, winner, loser = (x[rows[:, k]] for k in range(3))
    to_winner, to_loser = head - winner, head - loser
    near = noise.dissimilarity_slope(np.square(to_winner).sum(axis=1))[:, None] * 2.0 * to_winner
    far = noise.dissimilarity_slope(np.square(to_loser).sum(axis=1))[:, None] * 2.0 * to_loser
    return np.stack([far - near, near, -far], axis=1)


def _information(x: Array, rows: Triplets, noise: NoiseModel, lapse: float) -> Array:
    """Return the Fisher information of each answer about its margin z."""
    gaps = np.square(x[rows[:, :1]] - x[rows[:, 1:]]).sum(axis=2)
    attentive = noise.probability(gaps[:, 0], gaps[:, 1])
    chosen = lapse + (1.0 - 2.0 * lapse) * attentive
    slope = (1.0 - 2.0 * lapse) * attentive * (1.0 - attentive)
    return np.asarray(slope**2 / np.maximum(chosen * (1.0 - chosen), _SMALLEST))


def _together(x: Array, rows: Triplets, slopes: Array, information: Array, ridge: float) -> Array:
    n_items, d = x.shape
    size = n_items * d
    columns = (rows[:, :, None] * d + np.arange(d)).reshape(len(rows), -1)
    table = csr_array(
        (slopes.reshape(len(rows), -1).ravel(), columns.ravel(), np.arange(len(rows) + 1) * 3 * d),
        shape=(len(rows), size),
    )
    precision = np.asarray((table.T @ (table * information[:, None])).todense())
    precision[np.diag_indices(size)] += max(ridge, _SMALLEST)
    # Shifts and rotations of the whole embedding, fixed by a large precision.
    free = [np.tile(np.eye(d)[k], n_items) for k in range(d)]
    for a in range(d):
        for b in range(a):
            turn = np.zeros_like(x)
            turn[:, a], turn[:, b] = x[:, b], -x[:, a]
            free.append(turn.ravel())
    basis, _ = np.linalg.qr(np.stack(free, axis=1))
    precision += float(np.trace(precision)) * (basis @ basis.T)
    inverse = cho_solve(cho_factor(precision), np.eye(size))
    return np.asarray(np.diag(inverse).reshape(n_items, d).mean(axis=1))


def _one_by_one(
    n_items: int, rows: Triplets, slopes: Array, information: Array, ridge: float
) -> Array:
    d = slopes.shape[2]
    precision = np.zeros((n_items, d, d))
    for role in range(3):
        own = slopes[:, role, :]
        np.add.at(precision, rows[:, role], np.einsum("i,ij,ik->ijk", information, own, own))
    precision += max(ridge, _SMALLEST) * np.eye(d)
    return np.asarray(np.trace(np.linalg.inv(precision), axis1=1, axis2=2) / d)
