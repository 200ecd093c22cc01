"""Metrics of an embedding: against answers, and against the truth where it is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelerando._validation import check_integer, parameter_error
from accelerando.crowd._triplets import as_triplets, as_weights

__all__ = [
    "accuracy_band",
    "nearest_neighbor_distance",
    "nearest_neighbor_error",
    "procrustes",
    "triplet_accuracy",
]

Array = NDArray[np.float64]


def triplet_accuracy(
    embedding: ArrayLike, triplets: ArrayLike, *, sample_weight: ArrayLike | None = None
) -> float:
    """Return the share of triplets whose winner is nearer to the head; a tie counts one half.

    Parameters
    ----------
    embedding : array of shape (n_items, n_components)
        Positions of the items.
    triplets : array of shape (n_answers, 3)
        Answers as rows ``(head, winner, loser)``.
    sample_weight : array of shape (n_answers,), optional
        Weight of each answer; equal by default.

    Examples
    --------
    >>> triplet_accuracy([[0.0], [1.0], [3.0]], [[0, 1, 2], [2, 0, 1]])
    0.5
    """
    positions = _positions(embedding)
    rows = as_triplets(triplets, n_items=len(positions))
    if len(rows) == 0:
        raise parameter_error(
            "triplet_accuracy", "triplets", "an array with at least one answer", triplets
        )
    weights = as_weights(sample_weight, len(rows))
    winner = np.square(positions[rows[:, 0]] - positions[rows[:, 1]]).sum(axis=1)
    loser = np.square(positions[rows[:, 0]] - positions[rows[:, 2]]).sum(axis=1)
    right = (winner < loser) + 0.5 * (winner == loser)
    return float(weights @ right / weights.sum())


def accuracy_band(right: float, n_answers: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's confidence interval of a share.

    Unlike ``±z·√(p(1−p)/n)`` it stays inside [0, 1] and is accurate for few answers (Wilson, 1927).

    Parameters
    ----------
    right : float
        The share of correct answers, from 0 to 1.
    n_answers : int
        Number of answers.
    z : float, default=1.96
        Half width in standard errors; 1.96 gives 95 % coverage.

    Returns
    -------
    low, high : float
        The ends of the interval.

    Examples
    --------
    >>> low, high = accuracy_band(0.8, 100)
    >>> round(low, 3), round(high, 3)
    (0.711, 0.867)
    """
    check_integer("accuracy_band", "n_answers", n_answers)
    shrink = 1.0 + z * z / n_answers
    middle = (right + z * z / (2 * n_answers)) / shrink
    half = z / shrink * np.sqrt(right * (1 - right) / n_answers + z * z / (4 * n_answers**2))
    return float(max(middle - half, 0.0)), float(min(middle + half, 1.0))


def nearest_neighbor_error(embedding: ArrayLike, truth: ArrayLike) -> float:
    """Return the mean number of items that are nearer than the true nearest neighbor.

    0 is perfect. For each item the function finds its nearest neighbor in ``truth`` and counts the
    items that are nearer in the embedding. If several items are equally near in the truth, the
    nearest of them in the embedding counts.

    Parameters
    ----------
    embedding : array of shape (n_items, n_components)
    truth : array of shape (n_items,) or (n_items, n_true)
        True positions, for example the smoothness of alien eggs.

    Examples
    --------
    >>> nearest_neighbor_error([[0.0], [1.0], [2.1]], [0, 1, 2])
    0.0
    >>> nearest_neighbor_error([[0.0], [2.1], [1.0]], [0, 1, 2])
    0.6666666666666666
    """
    positions, target = _positions(embedding), _positions(truth)
    if len(positions) != len(target) or len(target) < 2:
        raise ValueError(
            "embedding and truth must have one row for each of at least two items. "
            f"Got {len(positions)} and {len(target)} rows instead."
        )
    found, true = _squared_distances(positions), _squared_distances(target)
    np.fill_diagonal(found, np.inf)
    np.fill_diagonal(true, np.inf)
    nearest = true.min(axis=1)
    # Equal up to rounding, because the truth is often a grid.
    is_nearest = true <= (nearest + 1e-9 * max(1.0, float(nearest.max())))[:, None]
    best = np.where(is_nearest, found, np.inf).min(axis=1)
    return float((found < best[:, None]).sum(axis=1).mean())


def nearest_neighbor_distance(embedding: ArrayLike, truth: ArrayLike) -> float:
    """Return the mean distance, in ranks, of the neighbor found from the true neighbor.

    For items that differ in one property: rank them by it. For each item, take the difference of
    the ranks of its nearest neighbor in the embedding and its nearest neighbor in truth. 0 is
    perfect. This is the metric of the alien-egg experiments (Sievert, dissertation 2021,
    Figures 4.5 and 4.9).

    Parameters
    ----------
    embedding : array of shape (n_items, n_components)
    truth : array of shape (n_items,)
        The property, for example the smoothness of alien eggs.

    Examples
    --------
    >>> nearest_neighbor_distance([[0.0], [1.0], [2.5], [4.5]], [0.0, 1.0, 2.5, 4.5])
    0.0
    >>> nearest_neighbor_distance([[0.0], [4.6], [2.5], [4.5]], [0.0, 1.0, 2.5, 4.5])
    1.75
    """
    positions = _positions(embedding)
    line = np.asarray(truth, dtype=np.float64)
    if line.ndim != 1 or len(line) != len(positions) or len(line) < 2:
        allowed = f"an array of shape ({len(positions)},) with at least two entries"
        raise parameter_error("nearest_neighbor_distance", "truth", allowed, line.shape)
    rank = np.argsort(np.argsort(line, kind="stable"), kind="stable")
    found = _squared_distances(positions)
    np.fill_diagonal(found, np.inf)
    true = np.abs(line[:, None] - line)
    np.fill_diagonal(true, np.inf)
    error = np.abs(rank[found.argmin(axis=1)][:, None] - rank).astype(np.float64)
    # If two items are equally near in truth, either of them is correct.
    nearest = true <= true.min(axis=1, keepdims=True)
    return float(np.where(nearest, error, np.inf).min(axis=1).mean())


def procrustes(embedding: ArrayLike, truth: ArrayLike) -> tuple[Array, float]:
    """Align the embedding with the truth by a shift, a rotation or reflection, and a scale.

    Minimizes ``‖truth − (s · embedding · R + t)‖²`` over rotations and reflections R, a scale s
    and a shift t by one singular value decomposition (Schönemann, 1966).

    Parameters
    ----------
    embedding : array of shape (n_items, n_components)
        The positions to align.
    truth : array of shape (n_items, n_true_components)
        The positions to align with. The array with fewer components is padded with zeros.

    Returns
    -------
    aligned : array of shape (n_items, n_components)
        The embedding in the coordinates of the truth.
    distance : float
        Residual variance as a share of the variance of the truth: 0 is a perfect fit.

    Examples
    --------
    >>> truth = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> turned = 3 * truth[:, ::-1] + 5
    >>> aligned, distance = procrustes(turned, truth)
    >>> bool(np.allclose(aligned, truth)), round(distance, 12)
    (True, 0.0)
    """
    positions, target = _positions(embedding), _positions(truth)
    if len(positions) != len(target):
        raise ValueError(
            "embedding and truth must have one row for each item. "
            f"Got {len(positions)} and {len(target)} rows instead."
        )
    width = max(positions.shape[1], target.shape[1])
    moved = np.pad(positions, ((0, 0), (0, width - positions.shape[1])))
    fixed = np.pad(target, ((0, 0), (0, width - target.shape[1])))
    center = fixed.mean(axis=0)
    moved, fixed = moved - moved.mean(axis=0), fixed - center
    total, size = float(np.square(fixed).sum()), float(np.square(moved).sum())
    if total == 0.0 or size == 0.0:
        raise ValueError(
            "embedding and truth must have at least two different positions each. All positions "
            "are equal."
        )
    left, values, right = np.linalg.svd(moved.T @ fixed)
    aligned = float(values.sum()) / size * moved @ (left @ right)
    distance = float(np.square(fixed - aligned).sum()) / total
    return aligned + center, distance


def _positions(values: ArrayLike) -> Array:
    positions = np.asarray(values, dtype=np.float64)
    return positions[:, None] if positions.ndim == 1 else positions


def _squared_distances(positions: Array) -> Array:
    gaps = positions[:, None, :] - positions[None, :, :]
    return np.asarray(np.einsum("ijk,ijk->ij", gaps, gaps))
