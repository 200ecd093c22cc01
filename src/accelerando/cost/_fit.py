"""From the times of updates to seconds per example and seconds per update."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls


def fit_line(rows: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Return seconds per example and overhead of ``seconds ≈ overhead + rows · per_example``.

    The median over the updates of each size keeps out the odd slow one: the first of a process,
    one after which a validation ran. Sizes count as often as they occur, relative to their time.
    With one size only, nothing tells the two apart, and the overhead is 0.

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
    # Relative errors: a large batch must not outweigh all small ones.
    weight = np.sqrt(np.bincount(which)) / np.maximum(medians, 1e-12)
    (per_example, overhead), _ = nnls(
        np.column_stack([sizes, np.ones(len(sizes))]) * weight[:, None], medians * weight
    )
    return float(per_example), float(overhead)
