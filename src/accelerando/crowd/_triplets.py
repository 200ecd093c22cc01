"""Triplets: answers as an array of rows ``(head, winner, loser)``, checked on entry."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Triplets", "as_queries", "as_triplets", "as_weights"]

Triplets = NDArray[np.intp]

_HIGHEST = 2**53  # beyond it floats are not exact


def as_triplets(
    triplets: ArrayLike, answers: ArrayLike | None = None, *, n_items: int | None = None
) -> Triplets:
    """Return rows ``(head, winner, loser)`` from triplets, or from queries and their answers.

    Parameters
    ----------
    triplets : array of shape (n_answers, 3)
        Rows ``(head, winner, loser)``; with ``answers`` given, queries ``(head, left, right)``.
    answers : array of shape (n_answers,), optional
        Booleans (True: the left item is more like the head) or the numbers of the chosen items.
    n_items : int, optional
        Number of items; every item number must be smaller.

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
            f"answers must have shape ({len(rows)},), one entry per query. "
            f"Got shape {chosen.shape} instead."
        )
    if chosen.dtype == np.bool_:
        left_won = chosen
    elif np.issubdtype(chosen.dtype, np.integer) or chosen.size == 0:
        left_won = chosen == rows[:, 1]
        wrong = ~left_won & (chosen != rows[:, 2])
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                "answers must be Booleans (True: left) or the left or right item of each query. "
                f"Got {chosen[at]} for the query {rows[at].tolist()} in row {at} instead."
            )
    else:
        raise TypeError(
            "answers must be Booleans (True: left) or item numbers. Got dtype "
            f"{chosen.dtype} instead."
        )
    return np.where(left_won[:, None], rows, rows[:, [0, 2, 1]])


def as_queries(rows: ArrayLike, *, n_items: int | None = None, name: str = "queries") -> Triplets:
    """Return an ``(n, 3)`` array with three different item numbers per row."""
    raw: NDArray[Any] = np.asarray(rows)
    if raw.size == 0:
        return np.empty((0, 3), dtype=np.intp)
    if raw.ndim != 2 or raw.shape[1] != 3:
        raise ValueError(
            f"{name} must have shape (n, 3), one item number per column. "
            f"Got shape {raw.shape} instead."
        )
    if isinstance(rows, list | tuple) and _has_boolean(rows):
        # NumPy reads True as 1.
        raise TypeError(f"{name} must contain integers. Got Booleans among them instead.")
    if raw.dtype.kind in "uf" and (raw >= _HIGHEST).any():
        at = int(np.flatnonzero((raw >= _HIGHEST).any(axis=1))[0])
        raise ValueError(
            f"{name} must contain item numbers below 2^53. Got {raw[at].tolist()} in row {at} "
            "instead."
        )
    if not np.issubdtype(raw.dtype, np.integer):
        if not np.issubdtype(raw.dtype, np.floating) or not np.array_equal(raw, np.floor(raw)):
            raise TypeError(f"{name} must contain integers. Got dtype {raw.dtype} instead.")
        raw = raw.astype(np.int64)
    bad = (raw < 0).any(axis=1)
    if n_items is not None:
        bad |= (raw >= n_items).any(axis=1)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        limit = (
            "of at least 0" if n_items is None else f"from 0 to {n_items - 1} (n_items={n_items})"
        )
        raise ValueError(
            f"{name} must contain item numbers {limit}. Got {raw[at].tolist()} in row {at} instead."
        )
    same = (raw[:, 0] == raw[:, 1]) | (raw[:, 0] == raw[:, 2]) | (raw[:, 1] == raw[:, 2])
    if same.any():
        at = int(np.flatnonzero(same)[0])
        raise ValueError(
            f"{name} must contain three different items per row. "
            f"Got {raw[at].tolist()} in row {at} instead."
        )
    return raw.astype(np.intp, copy=False)


def _has_boolean(rows: Any) -> bool:
    return any(
        isinstance(number, bool | np.bool_)
        for row in rows
        if isinstance(row, list | tuple)
        for number in row
    )


def as_column(name: str, values: ArrayLike | None, n_answers: int) -> NDArray[Any] | None:
    """Return an array with one entry per answer; None if there are no values."""
    if values is None:
        return None
    column: NDArray[Any] = np.asarray(values)
    if column.shape != (n_answers,):
        raise ValueError(
            f"{name} must have shape ({n_answers},), one entry per answer. Got shape "
            f"{column.shape} instead."
        )
    return column


def joined(name: str, before: NDArray[Any] | None, new: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return the columns of a fit and of the answers added to it as one; both or neither exist."""
    if (before is None) != (new is None):
        has, lacks = ("fit", "partial_fit") if new is None else ("partial_fit", "fit")
        raise ValueError(
            f"{name} must be passed to fit and to partial_fit, or to neither. Got it in {has} and "
            f"not in {lacks}. Call fit with all answers instead."
        )
    return None if before is None or new is None else np.concatenate([before, new])


def as_weights(sample_weight: ArrayLike | None, n_answers: int) -> NDArray[np.float64]:
    """Return one finite weight of at least 0 per answer; ones by default."""
    if sample_weight is None:
        return np.ones(n_answers)
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n_answers,):
        raise ValueError(
            f"sample_weight must have shape ({n_answers},), one weight per answer. Got shape "
            f"{weights.shape} instead."
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("sample_weight must contain finite numbers of at least 0. Some are not.")
    return weights
