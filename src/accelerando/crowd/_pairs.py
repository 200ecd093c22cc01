"""Which pairs of feet a search looks at."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]

# Fewer pairs than this at a time waste the call.
SMALLEST_BLOCK = 64
# Up to here every pair is tried (0.2 s on one core); beyond, as many as this amount of work allows.
_EXHAUSTIVE_UP_TO = 300
_WORK = 300 * 300 * 44_850


def choose_pairs(
    feet: NDArray[np.intp],
    pairs: int | Literal["auto", "all"],
    work_per_pair: int,
    rng: np.random.Generator,
) -> Pairs:
    """Pairs of different feet: all, or a sample without replacement."""
    possible = len(feet) * (len(feet) - 1) // 2
    wanted = _how_many(pairs, possible)
    if pairs == "auto" and len(feet) > _EXHAUSTIVE_UP_TO:
        wanted = max(SMALLEST_BLOCK, _WORK // work_per_pair)
    if wanted >= possible:
        first, second = np.triu_indices(len(feet), 1)
        return feet[first], feet[second]
    first, second = unrank(rng.choice(possible, size=wanted, replace=False), len(feet))
    return feet[first], feet[second]


def shuffled_pairs(
    feet: NDArray[np.intp],
    pairs: int | Literal["auto", "all"],
    size: int,
    rng: np.random.Generator,
) -> Iterator[Pairs]:
    """Pairs of different feet in random order, ``size`` at a time, none twice, none stored.

    The k-th pair has the number ``(start + stride · k) mod N``. A stride without common divisor
    with N visits every pair once, and a list of N = 50 million pairs is not needed.

    Examples
    --------
    >>> blocks = shuffled_pairs(np.arange(4), "all", 4, np.random.default_rng(0))
    >>> sorted({*zip(*next(blocks))} | {*zip(*next(blocks))})[:3] == [(0, 1), (0, 2), (0, 3)]
    True
    """
    possible = len(feet) * (len(feet) - 1) // 2
    start, stride = int(rng.integers(possible)), 1
    while possible > 2:
        stride = int(rng.integers(1, possible))
        if gcd(stride, possible) == 1:
            break
    wanted = min(_how_many(pairs, possible), possible)
    for begin in range(0, wanted, size):
        steps = np.arange(min(size, wanted - begin), dtype=np.int64)
        number = ((start + stride * begin) % possible + stride * steps) % possible
        first, second = unrank(number, len(feet))
        yield feet[first], feet[second]


def _how_many(pairs: int | Literal["auto", "all"], possible: int) -> int:
    if pairs in ("auto", "all"):
        return possible
    if isinstance(pairs, (int, np.integer)) and pairs >= 1:
        return int(pairs)
    raise ValueError(f"pairs must be 'auto', 'all' or a number of at least 1; got {pairs!r}.")


def unrank(number: NDArray[np.int64], n: int) -> Pairs:
    """The pair with this number in the order (0,1), (0,2), … (1,2), …, without listing them all.

    Examples
    --------
    >>> first, second = unrank(np.array([0, 1, 2, 3, 4, 5]), 4)
    >>> list(zip(first.tolist(), second.tolist()))
    [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    """
    # Counted from the end the rows have 1, 2, 3 … entries: a triangular number to invert.
    behind = n * (n - 1) // 2 - 1 - number
    row = ((np.sqrt(8.0 * behind + 1.0) - 1.0) / 2.0).astype(np.int64)
    row -= row * (row + 1) // 2 > behind
    row += (row + 1) * (row + 2) // 2 <= behind
    first = n - 2 - row
    second = n - 1 - (behind - row * (row + 1) // 2)
    return first.astype(np.intp), second.astype(np.intp)
