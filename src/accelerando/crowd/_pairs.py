"""Pairs of feet: enumerate or sample the pairs that a query search scores."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from accelerando._validation import check_integer

Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]

# Smaller blocks are dominated by the overhead of the call.
SMALLEST_BLOCK = 64
# Up to this many items "auto" is every pair (0.2 s on one core); beyond, a fixed amount of work.
_EXHAUSTIVE_UP_TO = 300
_WORK = 300 * 300 * 44_850


def choose_pairs(
    feet: NDArray[np.intp],
    pairs: int | Literal["auto", "all"],
    work_per_pair: int,
    rng: np.random.Generator,
) -> Pairs:
    """Return pairs of different feet: all of them, or a sample without replacement."""
    possible = len(feet) * (len(feet) - 1) // 2
    wanted = _n_pairs(pairs, possible)
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
    """Yield blocks of ``size`` pairs of different feet in random order, each pair once.

    The k-th pair has the number ``(start + stride · k) mod N``. A stride without common divisor
    with N visits every pair once, without a list of N = 50 million pairs in memory.

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
    wanted = min(_n_pairs(pairs, possible), possible)
    for begin in range(0, wanted, size):
        steps = np.arange(min(size, wanted - begin), dtype=np.int64)
        number = ((start + stride * begin) % possible + stride * steps) % possible
        first, second = unrank(number, len(feet))
        yield feet[first], feet[second]


def _n_pairs(pairs: int | Literal["auto", "all"], possible: int) -> int:
    if pairs in ("auto", "all"):
        return possible
    check_integer("search", "pairs", pairs, also={"auto": "'auto'", "all": "'all'"})
    return int(pairs)


def unrank(number: NDArray[np.int64], n: int) -> Pairs:
    """Return the pairs with these numbers in the order (0,1), (0,2), … (1,2), …

    Examples
    --------
    >>> first, second = unrank(np.array([0, 1, 2, 3, 4, 5]), 4)
    >>> list(zip(first.tolist(), second.tolist()))
    [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    """
    # Counted from the end the rows have 1, 2, 3 … entries: invert a triangular number.
    behind = n * (n - 1) // 2 - 1 - number
    row = ((np.sqrt(8.0 * behind + 1.0) - 1.0) / 2.0).astype(np.int64)
    row -= row * (row + 1) // 2 > behind
    row += (row + 1) * (row + 2) // 2 <= behind
    first = n - 2 - row
    second = n - 1 - (behind - row * (row + 1) // 2)
    return first.astype(np.intp), second.astype(np.intp)
