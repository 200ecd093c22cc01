"""Answers as an array: rows ``(head, winner, loser)`` of item numbers, checked once at the door."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Triplets", "as_queries", "as_triplets", "as_weights"]

Triplets = NDArray[np.intp]


def as_triplets(
    triplets: ArrayLike, answers: ArrayLike | None = None, *, n_items: int | None = None
) -> Triplets:
    """Rows ``(head, winner, loser)`` from triplets, or from queries and their answers.

    Parameters
    ----------
    triplets : array of shape (n_answers, 3)
        Rows ``(head, winner, loser)``; with ``answers`` given, queries ``(head, left, right)``.
    answers : array of shape (n_answers,), optional
        What was answered: booleans (true: the left item is nearer to the head) or the number of
        the chosen item.
    n_items : int, optional
        Every item number must lie below it.

    Examples
    --------
    >>> as_triplets([[0, 1, 2], [1, 0, 2]], answers=[True, False]).tolist()
    [[0, 1, 2], [1, 2, 0]]
    >>> as_triplets([[0, 1, 2], [1, 0, 2]], answers=[2, 0]).tolist()
    [[0, 2, 1], [1, 0, 2]]
    """
    rows = as_queries(triplets, n_items=n_items, name="triplets" if answers is None else "queries")
    if answers is None:
        return rows
    chosen = np.asarray(answers)
    if chosen.shape != (len(rows),):
        raise ValueError(
            f"answers must hold one entry per query, shape ({len(rows)},); got {chosen.shape}."
        )
    if chosen.dtype == np.bool_:
        left_won = chosen
    elif np.issubdtype(chosen.dtype, np.integer) or chosen.size == 0:
        left_won = chosen == rows[:, 1]
        wrong = ~left_won & (chosen != rows[:, 2])
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"answers must be booleans (true: left) or the chosen item, which is left or "
                f"right of its query; row {at} answers {chosen[at]} to query {rows[at].tolist()}."
            )
    else:
        raise TypeError(
            f"answers must be booleans (true: left) or item numbers; got dtype {chosen.dtype}."
        )
    return np.where(left_won[:, None], rows, rows[:, [0, 2, 1]])


def as_queries(rows: ArrayLike, *, n_items: int | None = None, name: str = "queries") -> Triplets:
    """An ``(n, 3)`` array of three different item numbers per row."""
    raw: NDArray[Any] = np.asarray(rows)
    if raw.size == 0:
        return np.empty((0, 3), dtype=np.intp)
    if raw.ndim != 2 or raw.shape[1] != 3:
        raise ValueError(
            f"{name} must have shape (n, 3), one item number per column; got {raw.shape}."
        )
    if not np.issubdtype(raw.dtype, np.integer):
        if not np.issubdtype(raw.dtype, np.floating) or not np.array_equal(raw, np.floor(raw)):
            raise TypeError(f"{name} must hold whole item numbers; got dtype {raw.dtype}.")
        raw = raw.astype(np.int64)
    bad = (raw < 0).any(axis=1)
    if n_items is not None:
        bad |= (raw >= n_items).any(axis=1)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        limit = "at least 0" if n_items is None else f"0 to {n_items - 1} (n_items={n_items})"
        raise ValueError(f"{name} must hold item numbers {limit}; row {at} is {raw[at].tolist()}.")
    same = (raw[:, 0] == raw[:, 1]) | (raw[:, 0] == raw[:, 2]) | (raw[:, 1] == raw[:, 2])
    if same.any():
        at = int(np.flatnonzero(same)[0])
        raise ValueError(
            f"{name} must name three different items per row; row {at} is {raw[at].tolist()}."
        )
    return raw.astype(np.intp, copy=False)


def as_weights(sample_weight: ArrayLike | None, n_answers: int) -> NDArray[np.float64]:
    """One finite weight of at least zero per answer; ones when none are given."""
    if sample_weight is None:
        return np.ones(n_answers)
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n_answers,):
        raise ValueError(
            f"sample_weight must hold one weight per answer, shape ({n_answers},); "
            f"got {weights.shape}."
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("sample_weight must be finite and at least 0; some entries are not.")
    return weights
