"""What benchmarks share that train until an accuracy is reached: step sizes, epochs, seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def walk(
    loss_of: Callable[[int], float], start: int, least: int, most: int
) -> tuple[int, dict[int, float]]:
    """Go downhill in whole steps from `start`; return the best and all that was tried."""
    found = {start: loss_of(start)}
    for direction in (1, -1):
        at = start
        while least <= at + direction <= most:
            found[at + direction] = loss_of(at + direction)
            if not found[at + direction] < found[at]:
                break
            at += direction
        if at != start:
            break
    return min(found, key=lambda exponent: found[exponent]), found


def epochs_to(target: float, accuracies: list[float]) -> float | None:
    """Return after how many epochs a target was reached, with straight lines between epochs."""
    before = 0.1  # ten classes, and a network that knows nothing
    for epoch, accuracy in enumerate(accuracies):
        if accuracy >= target:
            return epoch + max(0.0, (target - before) / (accuracy - before))
        before = accuracy
    return None


def spent_in(epochs: float, of_each: Sequence[float]) -> float:
    """Return what this many epochs took, which need not be whole, from what each of them took."""
    ends = np.cumsum([0.0, *of_each])
    return float(np.interp(epochs, np.arange(len(ends)), ends))


def steady_seconds(
    seconds: np.ndarray, epochs: np.ndarray, typical: Callable[[np.ndarray], Any] = np.median
) -> np.ndarray:
    """Return the seconds of each update.

    The first update of an epoch comes after the validation and the transport of the state to this
    process; it gets what is `typical` of the others. Where ranks meet only now and then that has to
    be the mean: a median would not see the updates in which they do.
    """
    taken = np.diff(seconds, prepend=0.0)
    first = np.diff(epochs, prepend=-1) != 0
    taken[first] = typical(taken[~first])
    return taken
