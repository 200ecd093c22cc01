"""How good is an embedding: against answers, and against the truth where it is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelerando.crowd._triplets import as_triplets, as_weights

__all__ = [
    "accuracy_band",
    "nearest_neighbour_distance",
    "nearest_neighbour_error",
    "procrustes",
    "triplet_accuracy",
]

Array = NDArray[np.float64]


def triplet_accuracy(
    embedding: ArrayLike, triplets: ArrayLike, *, sample_weight: ArrayLike | None = None
) -> float:
    """Share of triplets ``(head, winner, loser)`` whose winner lies nearer; a tie counts one half.

    Parameters
    ----------
    embedding : array of shape (n_items, n_components)
        Where the items are.
    triplets : array of shape (n_answers, 3)
        Answers as rows ``(head, winner, loser)``.
    sample_weight : array of shape (n_answers,), optional
        Weight of each answer; all count the same by default.

    Examples
    --------
    >>> triplet_accuracy([[0.0], [1.0], [3.0]], [[0, 1, 2], [2, 0, 1]])
    0.5
    """
    positions = _positions(embedding)
    rows = as_triplets(triplets, n_items=len(positions))
    if len(rows) == 0:
        raise ValueError("triplets must hold at least one answer to score; got none.")
    weights = as_weights(sample_weight, len(rows))
    winner = np.square(positions[rows[:, 0]] - positions[rows[:, 1]]).sum(axis=1)
    loser = np.square(positions[rows[:, 0]] - positions[rows[:, 2]]).sum(axis=1)
    right = (winner < loser) + 0.5 * (winner == loser)
    return float(weights @ right / weights.sum())


def accuracy_band(right: float, n_answers: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's confidence band of a share ``right`` of ``n_answers``.

    Unlike ``±z·√(p(1−p)/n)`` it stays inside [0, 1] and is honest for few answers (Wilson, 1927).

    Parameters
    ----------
    right : float
        The share, from 0 to 1.
    n_answers : int
        Of how many answers.
    z : float, default=1.96
        Width in standard errors; 1.96 holds the true share 95 times in a hundred.

    Returns
    -------
    low, high : float
        The ends of the band.

    Examples
    --------
    >>> low, high = accuracy_band(0.8, 100)
    >>> round(low, 3), round(high, 3)
    (0.711, 0.867)
    """
    if n_answers < 1:
        raise ValueError(f"n_answers must be at least 1; got {n_answers}.")
    shrink = 1.0 + z * z / n_answers
    middle = (right + z * z / (2 * n_answers)) / shrink
    half = z / shrink * np.sqrt(right * (1 - right) / n_answers + z * z / (4 * n_answers**2))
    return float(max(middle - half, 0.0)), float(min(middle + half, 1.0))


def nearest_neighbour_error(embedding: ArrayLike, truth: ArrayLike) -> float:
    """How many items lie, on average, nearer than the true nearest neighbour: 0 is perfect.

    For each item its nearest neighbour in ``truth`` is looked up, and the items counted that the
    embedding puts nearer than that one. Where several are equally near in the truth the best
    placed counts.

    Parameters
    ----------
    embedding : array of shape (n_items, n_components)
    truth : array of shape (n_items,) or (n_items, n_true)
        True positions, for example the smoothness of alien eggs.

    Examples
    --------
    >>> nearest_neighbour_error([[0.0], [1.0], [2.1]], [0, 1, 2])
    0.0
    >>> nearest_neighbour_error([[0.0], [2.1], [1.0]], [0, 1, 2])
    0.6666666666666666
    """
    positions, target = _positions(embedding), _positions(truth)
    if len(positions) != len(target) or len(target) < 2:
        raise ValueError(
            "embedding and truth must describe the same items, at least two; "
            f"got {len(positions)} and {len(target)}."
        )
    found, true = _squared_distances(positions), _squared_distances(target)
    np.fill_diagonal(found, np.inf)
    np.fill_diagonal(true, np.inf)
    nearest = true.min(axis=1)
    # Equally near up to rounding: the truth is often a grid.
    is_nearest = true <= (nearest + 1e-9 * max(1.0, float(nearest.max())))[:, None]
    best = np.where(is_nearest, found, np.inf).min(axis=1)
    return float((found < best[:, None]).sum(axis=1).mean())


def nearest_neighbour_distance(embedding: ArrayLike, truth: ArrayLike) -> float:
    """How far, on average, the neighbour found is from the true one, in places on a line.

    For items that differ in one property: order them by it; for each item count the places between
    its nearest neighbour in the embedding and its nearest neighbour in truth. 0 is perfect. This
    is the measure of the alien-egg experiments (Sievert, dissertation 2021, Figures 4.5 and 4.9).

    Parameters
    ----------
    embedding : array of shape (n_items, n_components)
    truth : array of shape (n_items,)
        The property, for example the smoothness of alien eggs.

    Examples
    --------
    >>> nearest_neighbour_distance([[0.0], [1.0], [2.5], [4.5]], [0.0, 1.0, 2.5, 4.5])
    0.0
    >>> nearest_neighbour_distance([[0.0], [4.6], [2.5], [4.5]], [0.0, 1.0, 2.5, 4.5])
    1.75
    """
    positions = _positions(embedding)
    line = np.asarray(truth, dtype=np.float64)
    if line.ndim != 1 or len(line) != len(positions) or len(line) < 2:
        raise ValueError(
            f"truth must hold one number for each of the {len(positions)} items, at least two; "
            f"got shape {line.shape}."
        )
    place = np.argsort(np.argsort(line, kind="stable"), kind="stable")
    found = _squared_distances(positions)
    np.fill_diagonal(found, np.inf)
    true = np.abs(line[:, None] - line)
    np.fill_diagonal(true, np.inf)
    apart = np.abs(place[found.argmin(axis=1)][:, None] - place).astype(np.float64)
    # Where two items are equally near in truth either of them will do.
    nearest = true <= true.min(axis=1, keepdims=True)
    return float(np.where(nearest, apart, np.inf).min(axis=1).mean())


def procrustes(embedding: ArrayLike, truth: ArrayLike) -> tuple[Array, float]:
    """Shift, turn, mirror and scale the embedding onto the truth.

    Finds ``min ‖truth − (s · embedding · R + t)‖²`` over rotations and reflections R, a scale s
    and a shift t by one singular value decomposition (Schönemann, 1966).

    Parameters
    ----------
    embedding : array of shape (n_items, n_components)
        What is moved.
    truth : array of shape (n_items, n_true_components)
        What it is moved onto. The one with fewer components gets further ones of zeros.

    Returns
    -------
    aligned : array of shape (n_items, n_components)
        The embedding in the coordinates of the truth.
    distance : float
        What is left, as a share of the truth's variance: 0 is a perfect fit, 1 says nothing.

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
            "embedding and truth must describe the same items; "
            f"got {len(positions)} and {len(target)}."
        )
    width = max(positions.shape[1], target.shape[1])
    moved = np.pad(positions, ((0, 0), (0, width - positions.shape[1])))
    fixed = np.pad(target, ((0, 0), (0, width - target.shape[1])))
    centre = fixed.mean(axis=0)
    moved, fixed = moved - moved.mean(axis=0), fixed - centre
    total, size = float(np.square(fixed).sum()), float(np.square(moved).sum())
    if total == 0.0 or size == 0.0:
        raise ValueError("embedding and truth must not have all their items in one place.")
    left, values, right = np.linalg.svd(moved.T @ fixed)
    aligned = float(values.sum()) / size * moved @ (left @ right)
    distance = float(np.square(fixed - aligned).sum()) / total
    return aligned + centre, distance


def _positions(values: ArrayLike) -> Array:
    positions = np.asarray(values, dtype=np.float64)
    return positions[:, None] if positions.ndim == 1 else positions


def _squared_distances(positions: Array) -> Array:
    gaps = positions[:, None, :] - positions[None, :, :]
    return np.asarray(np.einsum("ijk,ijk->ij", gaps, gaps))
