"""Warm-up: the first epochs of a run, in which ranks communicate more."""

from __future__ import annotations

import math
from collections.abc import Mapping


def in_warmup(signals: Mapping[str, float], epochs: float) -> bool:
    """Return True during the first `epochs` epochs of a run, of which the last may be a part.

    Examples
    --------
    >>> in_warmup({"epoch": 0, "examples": 40.0, "n_examples": 100.0}, 0.5)
    True
    >>> in_warmup({"epoch": 0, "examples": 50.0, "n_examples": 100.0}, 0.5)
    False
    """
    epoch = signals["epoch"]
    if epoch != math.floor(epochs) or epoch == epochs:
        return epoch < epochs
    done = signals["examples"] / signals["n_examples"]
    return not done >= epochs  # of a stream of unknown length, the whole epoch
