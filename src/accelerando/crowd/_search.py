"""Find the most informative queries: exhaustively, in a sample of pairs, or until time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelerando.crowd import _kernel_numpy
from accelerando.crowd._pairs import SMALLEST_BLOCK, Pairs, choose_pairs, shuffled_pairs
from accelerando.crowd._posterior import Belief
from accelerando.crowd._score import head_entropy
from accelerando.crowd._triplets import Triplets

__all__ = ["Found", "search"]

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Kernel = Callable[[Single, float, Single], Single]
Score = Literal["information gain", "uncertainty"]
Backend = Literal["auto", "numpy", "numba"]
# Scores and queries of shape (heads, ≤ top), and how many queries were looked at.
_Part = tuple[Array, Triplets, int]

# Entries of the largest temporary matrix: measured best at 512 pairs × 90 places, and it is what
# bounds the memory of a search whatever the number of items.
_BLOCK_ENTRIES = 512 * 90
# Results of blocks that are kept before the best of them are picked.
_PARTS_AT_ONCE = 64
# Places this unlikely change no score that single precision could show.
_NEGLIGIBLE = 1e-12


@dataclass(frozen=True)
class Found:
    """The best queries of each head, best first within a head.

    Attributes
    ----------
    queries : array of shape (n_found, 3)
        Rows ``(head, left, right)``.
    scores : array of shape (n_found,)
    n_scored : int
        How many queries were looked at.
    """

    queries: Triplets
    scores: Array
    n_scored: int


def search(
    belief: Belief,
    *,
    heads: ArrayLike | None = None,
    items: ArrayLike | None = None,
    score: Score = "information gain",
    pairs: int | Literal["auto", "all"] = "auto",
    top: int = 1,
    seconds: float | None = None,
    include_head: bool = True,
    backend: Backend = "auto",
    threads: int = 1,
    random_state: int | np.random.Generator | None = None,
) -> Found:
    """The ``top`` best queries of each head.

    Parameters
    ----------
    belief : Belief
        Positions and posterior.
    heads : array of int, optional
        Only these heads; all of ``items`` by default.
    items : array of int, optional
        Feet come from these items; all by default.
    score : {"information gain", "uncertainty"}
        What is best; see :mod:`accelerando.crowd._score`.
    pairs : "auto", "all" or int
        Which pairs of feet: all of them, or this many drawn at random, the same for all heads.
        "auto" is all for up to 300 items, and a sample of about the same work beyond.
    top : int, default=1
        Queries per head.
    seconds : float, optional
        Stop after this time and return the best found so far; pairs then come in random order.
    include_head : bool, default=True
        False drops the head's own entropy, as Salmon and NEXT do; for comparison only.
    backend : {"auto", "numpy", "numba"}
        "auto" takes numba if it is installed (``pip install accelerando[fast]``).
    threads : int, default=1
        Blocks of pairs scored at the same time.
    random_state : int or Generator, optional
        For drawing pairs.

    Examples
    --------
    >>> from accelerando.crowd import Belief, TSTE
    >>> positions = np.array([[0.0], [1.0], [5.0], [6.0]])
    >>> belief = Belief(positions, positions, np.zeros((4, 4)), TSTE())
    >>> found = search(belief, heads=[0])
    >>> found.queries.tolist(), found.n_scored
    ([[0, 1, 3]], 3)
    """
    if top < 1 or threads < 1:
        raise ValueError(f"top and threads must be at least 1; got top={top}, threads={threads}.")
    feet = _subset(items, belief.n_items, "items", at_least=3)
    asked = feet if heads is None else _subset(heads, belief.n_items, "heads", at_least=1)
    n_places = 1 if score == "uncertainty" else len(belief.places)
    rng = np.random.default_rng(random_state)
    size = max(SMALLEST_BLOCK, _BLOCK_ENTRIES // max(len(asked), n_places))
    begun = time.monotonic()

    def blocks() -> Iterator[Pairs]:
        if seconds is None:
            left, right = choose_pairs(feet, pairs, len(asked) * n_places, rng)
            for begin in range(0, len(left), size):
                yield left[begin : begin + size], right[begin : begin + size]
            return
        for number, block in enumerate(shuffled_pairs(feet, pairs, size, rng)):
            # The first block is always scored: an answer late is better than none.
            if number and time.monotonic() >= begun + seconds:
                return
            yield block

    score_pairs = _scorer(belief, asked, score, include_head=include_head, backend=backend)

    row_of = np.full(belief.n_items, -1)
    row_of[asked] = np.arange(len(asked))

    def best(block: Pairs) -> _Part:
        return _best_of_block(score_pairs(*block), asked, row_of, block, top=top)

    scores, queries, n_scored = _gather(best, blocks(), top=top, threads=threads)
    scores, queries = scores.ravel(), queries.reshape(-1, 3)
    kept = np.isfinite(scores)
    return Found(queries[kept], scores[kept], n_scored)


def _gather(
    best: Callable[[Pairs], _Part], blocks: Iterator[Pairs], *, top: int, threads: int
) -> _Part:
    """The best of all blocks, worked through by as many threads."""
    numbered = enumerate(blocks)
    door = Lock()

    def work() -> list[tuple[int, _Part]]:
        parts: list[tuple[int, _Part]] = []
        while True:
            # Each thread fetches its next block itself: a clock behind the door stops them all.
            with door:
                number, block = next(numbered, (-1, None))
            if block is None:
                return parts
            parts.append((number, best(block)))
            if len(parts) == _PARTS_AT_ONCE:
                parts = [_merged(parts, top)]

    if threads == 1:
        return _merged(work(), top)[1]
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(work) for _ in range(threads)]
    return _merged([part for done in running for part in done.result()], top)[1]


def _merged(parts: list[tuple[int, _Part]], top: int) -> tuple[int, _Part]:
    """The ``top`` best of each row; of equal scores the one of the earlier block."""
    parts = sorted(parts, key=lambda part: part[0])
    scores = np.concatenate([part[0] for _, part in parts], axis=1)
    queries = np.concatenate([part[1] for _, part in parts], axis=1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return parts[0][0], (
        np.take_along_axis(scores, order, axis=1),
        np.take_along_axis(queries, order[:, :, None], axis=1),
        sum(part[2] for _, part in parts),
    )


def _scorer(
    belief: Belief, heads: NDArray[np.intp], score: Score, *, include_head: bool, backend: Backend
) -> Callable[[NDArray[np.intp], NDArray[np.intp]], Single]:
    """A function from a block of pairs to scores of shape (heads, pairs)."""
    if score == "uncertainty":
        gaps = belief.positions[heads][:, None, :] - belief.positions[None, :, :]
        to_head = np.einsum("ijk,ijk->ij", gaps, gaps)

        def uncertain(left: NDArray[np.intp], right: NDArray[np.intp]) -> Single:
            chosen = belief.noise.probability(to_head[:, left], to_head[:, right], belief.lapse)
            return _kernel_numpy.binary_entropy(chosen).astype(np.float32)

        return uncertain
    if score != "information gain":
        raise ValueError(f"score must be 'information gain' or 'uncertainty'; got {score!r}.")
    kernel = _kernel(backend)
    table = belief.dissimilarity.astype(np.float32)
    weights = belief.posterior(heads).astype(np.float32)
    # Products with them would be denormal numbers, which a processor multiplies many times slower.
    weights[weights < _NEGLIGIBLE] = 0.0
    entropy = None if include_head else head_entropy(belief)[heads].astype(np.float32)[:, None]

    def gain(left: NDArray[np.intp], right: NDArray[np.intp]) -> Single:
        log_odds = table.take(right, axis=0)
        log_odds -= table.take(left, axis=0)
        scores = kernel(belief.noise.log_odds(log_odds), belief.lapse, weights)
        return scores if entropy is None else scores - entropy

    return gain


def _kernel(backend: Backend) -> Kernel:
    if backend not in ("auto", "numpy", "numba"):
        raise ValueError(f"backend must be 'auto', 'numpy' or 'numba'; got {backend!r}.")
    if backend == "numpy":
        return _kernel_numpy.score_block
    try:
        from accelerando.crowd import _kernel_numba
    except (ImportError, RuntimeError) as error:  # not there, or nowhere to keep compiled code
        if backend == "numba":
            raise ImportError(
                "backend='numba' needs numba: pip install 'accelerando[fast]'. "
                "backend='numpy' gives the same scores without it."
            ) from error
        return _kernel_numpy.score_block
    return _kernel_numba.score_block


def _best_of_block(
    scores: Single, heads: NDArray[np.intp], row_of: NDArray[np.intp], block: Pairs, *, top: int
) -> _Part:
    """The ``top`` columns of each row, as scores and queries, and how many were possible."""
    left, right = block
    impossible = 0
    for foot in block:
        rows = row_of[foot]
        clash = np.flatnonzero(rows >= 0)
        scores[rows[clash], clash] = -np.inf
        impossible += len(clash)
    if top == 1:
        columns = scores.argmax(axis=1)[:, None]
    elif top < scores.shape[1]:
        columns = np.argpartition(scores, -top, axis=1)[:, -top:]
    else:
        columns = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    found = np.take_along_axis(scores, columns, axis=1).astype(np.float64)
    named = np.broadcast_to(heads[:, None], columns.shape)
    queries = np.stack([named, left[columns], right[columns]], axis=2)
    return found, queries, scores.size - impossible


def _subset(
    chosen: ArrayLike | None, n_items: int, name: str, *, at_least: int
) -> NDArray[np.intp]:
    if chosen is None:
        return np.arange(n_items)
    numbers = np.unique(np.asarray(chosen, dtype=np.intp))
    if len(numbers) < at_least or numbers[0] < 0 or numbers[-1] >= n_items:
        raise ValueError(
            f"{name} must name at least {at_least} of the items 0 to {n_items - 1}; "
            f"got {np.asarray(chosen).tolist()}."
        )
    return numbers
