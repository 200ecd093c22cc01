"""In which order an epoch visits the examples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


def epoch_order(seed: int, epoch: int, n: int) -> Rows:
    """Return the shuffle of `n` rows in one epoch.

    It depends on (seed, epoch) only, not on batch sizes, on the number of processes or on what
    happened before, so that an interrupted epoch can be taken up anywhere.

    Examples
    --------
    >>> epoch_order(seed=0, epoch=0, n=4).tolist() == epoch_order(seed=0, epoch=0, n=4).tolist()
    True
    """
    return np.random.default_rng([seed, epoch]).permutation(n)


def sample_rows(seed: int, update: int, n: int, fraction: float) -> Rows:
    """Return the sorted rows on which a policy's measurement before `update` is made."""
    if fraction >= 1:
        return np.arange(n)
    size = max(1, round(fraction * n))
    # The third number keeps these draws apart from the shuffles.
    drawn = np.random.default_rng([seed, update, 1]).choice(n, size, replace=False)
    return np.sort(drawn)
