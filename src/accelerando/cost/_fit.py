"""Fit of a line to the durations of updates: seconds per example and seconds per update."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls


def fit_line(rows: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Return seconds per example and overhead of ``seconds ≈ overhead + rows · per_example``.

    The median over the updates of each size excludes outliers: the first update of a process, or
    one after a validation. Each size has the weight of its number of updates, relative to its
    duration. With a single size the two cannot be separated, and the overhead is 0.

    Examples
    --------
    >>> per_example, overhead = fit_line(np.array([10, 10, 40]), np.array([0.3, 0.3, 0.6]))
    >>> f"{per_example:.3f} {overhead:.3f}"
    '0.010 0.200'
    """
    sizes, which = np.unique(rows, return_inverse=True)
    medians = np.array([np.median(seconds[which == i]) for i in range(len(sizes))])
    if len(sizes) == 1:
        return float(medians[0] / sizes[0]), 0.0
    # Minimize relative errors: a large batch must not dominate all small ones.
    weight = np.sqrt(np.bincount(which)) / np.maximum(medians, 1e-12)
    (per_example, overhead), _ = nnls(
        np.column_stack([sizes, np.ones(len(sizes))]) * weight[:, None], medians * weight
    )
    return float(per_example), float(overhead)
