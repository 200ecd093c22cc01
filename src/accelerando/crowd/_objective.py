"""The objective of a fit: mean loss of the answers as a function of the positions, with gradient.

All noise models depend on positions only through squared distances, so the computation runs over
*pairs* of items: ``δ → f(δ)`` once per pair, one margin per answer, and the slopes are summed per
pair before they become a gradient. With few items several answers use each pair, and the pairs form
a full matrix (:class:`_AllPairs`). With many items only the pairs that occur are kept
(:class:`_UsedPairs`).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accelerando.crowd._noise import NoiseModel
from accelerando.crowd._triplets import Triplets

Array = NDArray[np.float64]

# A full matrix is cheaper than a list of pairs unless it has several times more entries.
_FULL_MATRIX_UP_TO = 128
_FULL_MATRIX_SHARE = 4


class Objective:
    """Mean loss of the answers plus ``ridge/2 · ‖X‖² / Σw``, with gradient.

    An instance is a function of positions and a lapse rate. With a mixture, the arrays floor and
    slope of :meth:`NoiseModel.mixed_link`, the lapse rate has no effect.
    """

    def __init__(
        self,
        triplets: Triplets,
        weights: Array,
        n_items: int,
        noise: NoiseModel,
        *,
        ridge: float = 0.0,
        mixture: tuple[Array, Array] | None = None,
    ) -> None:
        if mixture is None:
            triplets, weights = _merge_repeats(triplets, weights, n_items)
        self._mixture = mixture
        self.n_items = n_items
        self._noise = noise
        self._weights = weights / weights.sum()
        self._ridge = ridge / weights.sum()
        full = n_items <= _FULL_MATRIX_UP_TO or n_items**2 <= _FULL_MATRIX_SHARE * len(triplets)
        self._pairs: _Pairs = (_AllPairs if full else _UsedPairs)(triplets, n_items)

    def __call__(self, positions: Array, lapse: float) -> tuple[float, Array, float]:
        """Return the loss, its gradient in the positions, and its slope in the lapse rate."""
        squared = self._pairs.squared_distances(positions)
        dissimilarity = self._noise.dissimilarity(squared)
        margin = dissimilarity[self._pairs.loser] - dissimilarity[self._pairs.winner]
        if self._mixture is None:
            terms = self._noise.link(margin, lapse)
        else:
            terms = self._noise.mixed_link(margin, *self._mixture)
        slope = self._weights * terms.margin_slope
        per_pair = np.asarray(np.bincount(self._pairs.loser, slope, squared.size), np.float64)
        per_pair -= np.bincount(self._pairs.winner, slope, squared.size)
        per_pair *= self._noise.dissimilarity_slope(squared)
        return (
            float(self._weights @ terms.loss)
            + 0.5 * self._ridge * float(np.vdot(positions, positions)),
            self._pairs.gradient(positions, per_pair) + self._ridge * positions,
            float(self._weights @ terms.lapse_slope),
        )


class _Pairs(Protocol):
    winner: NDArray[np.intp]
    loser: NDArray[np.intp]

    def squared_distances(self, positions: Array) -> Array: ...

    def gradient(self, positions: Array, per_pair: Array) -> Array: ...


class _AllPairs:
    """Pair (h, i) is entry ``h · n + i`` of the full distance matrix."""

    def __init__(self, triplets: Triplets, n_items: int) -> None:
        self._n_items = n_items
        self.winner = triplets[:, 0] * n_items + triplets[:, 1]
        self.loser = triplets[:, 0] * n_items + triplets[:, 2]

    def squared_distances(self, positions: Array) -> Array:
        squared = positions @ positions.T
        norms = squared.diagonal().copy()
        squared *= -2.0
        squared += norms
        squared += norms[:, None]
        return np.maximum(squared, 0.0, out=squared).ravel()

    def gradient(self, positions: Array, per_pair: Array) -> Array:
        # ∂δ_ij/∂x_i = 2 (x_i − x_j): the Laplacian of the symmetrized slopes.
        slopes = per_pair.reshape(self._n_items, self._n_items)
        slopes = slopes + slopes.T
        gradient: Array = slopes.sum(axis=1)[:, None] * positions
        gradient -= slopes @ positions
        gradient *= 2.0
        return gradient


class _UsedPairs:
    """Only the pairs that occur in an answer, as a list."""

    def __init__(self, triplets: Triplets, n_items: int) -> None:
        self._n_items = n_items
        keys = triplets[:, [0, 0]] * n_items + triplets[:, 1:]
        pairs, where = np.unique(keys.ravel(), return_inverse=True)
        where = where.reshape(keys.shape)
        self.winner, self.loser = where[:, 0].copy(), where[:, 1].copy()
        self._head, self._foot = np.divmod(pairs, n_items)

    def squared_distances(self, positions: Array) -> Array:
        gap = positions[self._head] - positions[self._foot]
        return np.asarray(np.einsum("ij,ij->i", gap, gap))

    def gradient(self, positions: Array, per_pair: Array) -> Array:
        pull = (positions[self._head] - positions[self._foot]) * (2.0 * per_pair[:, None])
        gradient = np.empty_like(positions)
        for axis in range(positions.shape[1]):
            gradient[:, axis] = np.bincount(self._head, pull[:, axis], self._n_items)
            gradient[:, axis] -= np.bincount(self._foot, pull[:, axis], self._n_items)
        return gradient


def _merge_repeats(triplets: Triplets, weights: Array, n_items: int) -> tuple[Triplets, Array]:
    """Merge equal answers, adding their weights; sort them for locality of memory accesses."""
    keys = (triplets[:, 0] * n_items + triplets[:, 1]) * n_items + triplets[:, 2]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    return triplets[order[first]], np.add.reduceat(weights[order], first)
