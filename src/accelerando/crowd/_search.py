"""Query search: find the most informative queries.

The search is exhaustive, over a sample of pairs, or limited in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelerando._validation import check_choice, check_integer, parameter_error
from accelerando.crowd import _kernel_numpy
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._pairs import SMALLEST_BLOCK, Pairs, choose_pairs, shuffled_pairs
from accelerando.crowd._posterior import Posterior, as_posterior
from accelerando.crowd._score import head_entropy
from accelerando.crowd._triplets import Triplets

__all__ = ["SearchResult", "search"]

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Kernel = Callable[[Single, float, Single], Single]
Score = Literal["information gain", "uncertainty"]
Backend = Literal["auto", "numpy", "numba"]
# Scores and queries of shape (heads, ≤ top), and the number of queries that were scored.
_Part = tuple[Array, Triplets, int]

# Entries of the largest temporary matrix. 512 pairs × 90 places were fastest, and the limit bounds
# the memory of a search for any number of items.
_BLOCK_ENTRIES = 512 * 90
# Results of blocks that are kept before they are merged.
_PARTS_AT_ONCE = 64
# Places with smaller probabilities change no score at single precision.
_NEGLIGIBLE = 1e-12


@dataclass(frozen=True)
class SearchResult:
    """The best queries of each head, best first within a head.

    Attributes
    ----------
    queries : array of shape (n_found, 3)
        Rows ``(head, left, right)``.
    scores : array of shape (n_found,)
    n_scored : int
        Number of queries that were scored.
    """

    queries: Triplets
    scores: Array
    n_scored: int


def search(
    model: OrdinalEmbedding | Posterior,
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
) -> SearchResult:
    """Return the ``top`` most informative queries of each head.

    Parameters
    ----------
    model : OrdinalEmbedding
        A fitted embedding.
    heads : array of int, optional
        Only these heads; all of ``items`` by default.
    items : array of int, optional
        Feet come from these items; all by default.
    score : {"information gain", "uncertainty"}
        What to maximize: the information about the head's place, or the entropy of the answer.
    pairs : "auto", "all" or int
        Which pairs of feet to score: all of them, or this many drawn at random, the same for all
        heads. "auto" is all for up to 300 items, and a sample of about the same work beyond.
    top : int, default=1
        Queries per head.
    seconds : float, optional
        Stop after this time and return the best found so far; pairs then come in random order.
    include_head : bool, default=True
        False leaves out the entropy of the head, as Salmon and NEXT do; for comparison only.
    backend : {"auto", "numpy", "numba"}
        "auto" uses numba if it is installed (``pip install accelerando[fast]``).
    threads : int, default=1
        Number of threads that score blocks of pairs.
    random_state : int or Generator, optional
        Seed for drawing pairs.

    Returns
    -------
    SearchResult
        With the attributes ``queries`` (rows ``(head, left, right)``, best first within a head),
        ``scores``, and ``n_scored``, the number of queries that were scored.

    Examples
    --------
    >>> answers = [[0, 1, 2], [1, 0, 2], [2, 1, 0], [3, 2, 0], [2, 3, 1], [3, 2, 1]]
    >>> model = OrdinalEmbedding(n_components=1, random_state=0).fit(answers)
    >>> found = search(model, heads=[0])
    >>> found.queries.shape, found.n_scored
    ((1, 3), 3)
    """
    check_integer("search", "top", top)
    check_integer("search", "threads", threads)
    check_choice("search", "score", score, ("information gain", "uncertainty"))
    check_choice("search", "backend", backend, ("auto", "numpy", "numba"))
    posterior = as_posterior(model)
    feet = _subset(items, posterior.n_items, "items", at_least=3)
    asked = feet if heads is None else _subset(heads, posterior.n_items, "heads", at_least=1)
    n_places = 1 if score == "uncertainty" else len(posterior.places)
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
            # The first block is always scored: a late result is better than none.
            if number and time.monotonic() >= begun + seconds:
                return
            yield block

    score_pairs = _scorer(posterior, asked, score, include_head=include_head, backend=backend)

    row_of = np.full(posterior.n_items, -1)
    row_of[asked] = np.arange(len(asked))

    def best(block: Pairs) -> _Part:
        return _best_of_block(score_pairs(*block), asked, row_of, block, top=top)

    scores, queries, n_scored = _gather(best, blocks(), top=top, threads=threads)
    scores, queries = scores.ravel(), queries.reshape(-1, 3)
    kept = np.isfinite(scores)
    return SearchResult(queries[kept], scores[kept], n_scored)


def _gather(
    best: Callable[[Pairs], _Part], blocks: Iterator[Pairs], *, top: int, threads: int
) -> _Part:
    """Return the best queries of all blocks, scored by this many threads."""
    numbered = enumerate(blocks)
    lock = Lock()

    def work() -> list[tuple[int, _Part]]:
        parts: list[tuple[int, _Part]] = []
        while True:
            # The threads share one iterator, so that its clock stops all of them.
            with lock:
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
    """Return the ``top`` best of each row; ties go to the earlier block."""
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
    posterior: Posterior,
    heads: NDArray[np.intp],
    score: Score,
    *,
    include_head: bool,
    backend: Backend,
) -> Callable[[NDArray[np.intp], NDArray[np.intp]], Single]:
    """Return a function from a block of pairs to scores of shape (heads, pairs)."""
    if score == "uncertainty":
        gaps = posterior.positions[heads][:, None, :] - posterior.positions[None, :, :]
        to_head = np.einsum("ijk,ijk->ij", gaps, gaps)

        def uncertain(left: NDArray[np.intp], right: NDArray[np.intp]) -> Single:
            chosen = posterior.noise.probability(
                to_head[:, left], to_head[:, right], posterior.lapse
            )
            return _kernel_numpy.binary_entropy(chosen).astype(np.float32)

        return uncertain
    kernel = _kernel(backend)
    table = posterior.dissimilarity.astype(np.float32)
    weights = posterior.probabilities(heads).astype(np.float32)
    # Products with tiny weights would be denormal numbers, which CPUs multiply many times slower.
    weights[weights < _NEGLIGIBLE] = 0.0
    entropy = None if include_head else head_entropy(posterior)[heads].astype(np.float32)[:, None]

    def gain(left: NDArray[np.intp], right: NDArray[np.intp]) -> Single:
        log_odds = table.take(right, axis=0)
        log_odds -= table.take(left, axis=0)
        scores = kernel(posterior.noise.log_odds(log_odds), posterior.lapse, weights)
        return scores if entropy is None else scores - entropy

    return gain


def _kernel(backend: Backend) -> Kernel:
    if backend == "numpy":
        return _kernel_numpy.score_block
    try:
        from accelerando.crowd import _kernel_numba
    except (ImportError, RuntimeError) as error:  # not installed, or no directory for compiled code
        if backend == "numba":
            raise ImportError(
                "backend='numba' needs numba. Install it with pip install 'accelerando[fast]', or "
                "use backend='numpy', which gives the same scores."
            ) from error
        return _kernel_numpy.score_block
    return _kernel_numba.score_block


def _best_of_block(
    scores: Single, heads: NDArray[np.intp], row_of: NDArray[np.intp], block: Pairs, *, top: int
) -> _Part:
    """Return scores and queries of the ``top`` columns of each row, and the number of queries."""
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
        allowed = f"at least {at_least} of the item numbers 0 to {n_items - 1}"
        raise parameter_error("search", name, allowed, np.asarray(chosen).tolist())
    return numbers
