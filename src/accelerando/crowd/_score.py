"""How much would the answer to a query tell us?

For the query (h, a, b) and a posterior τ over the places i of its head,

    I(answer; place of h) = h₂(Σᵢ τ_hi pᵢ(a, b)) − Σᵢ τ_hi h₂(pᵢ(a, b)),

with the binary entropy h₂ and the probability pᵢ(a, b) that a head at xᵢ is called more like a.
It is large where the places that are still possible predict *different* answers (first term) and
each of them predicts its answer with certainty (second term).

The equivalent form ``H(τ_h) − E[H(τ_h | answer)]`` shows what Salmon and NEXT compute: only the
second part, which is the same up to a constant *for one head*. Across heads the missing H(τ_h)
makes the best-known head look best, again and again: the "constant head" of the
dissertation's appendix E. :func:`information_gain` has ``include_head=False`` to show it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelerando.crowd._kernel_numpy import binary_entropy
from accelerando.crowd._posterior import Belief
from accelerando.crowd._triplets import as_queries

__all__ = ["head_entropy", "information_gain", "uncertainty"]

Array = NDArray[np.float64]

_BLOCK = 1 << 18


def information_gain(queries: ArrayLike, belief: Belief, *, include_head: bool = True) -> Array:
    """Mutual information, in nats, of each query's answer and the place of its head.

    Parameters
    ----------
    queries : array of shape (n_queries, 3)
        Rows ``(head, left, right)``.
    belief : Belief
        Positions and posterior.
    include_head : bool, default=True
        False leaves the head's own entropy out, as Salmon and NEXT do; for comparison only.

    References
    ----------
    Tamuz et al., "Adaptively learning the crowd kernel", ICML 2011, section 5.

    Examples
    --------
    >>> from accelerando.crowd._noise import TSTE
    >>> positions = np.array([[0.0], [1.0], [5.0], [6.0]])
    >>> belief = Belief(positions, positions, np.zeros((4, 4)), TSTE())
    >>> near, far = information_gain([[0, 1, 2], [0, 2, 3]], belief)
    >>> bool(near > far)
    True
    """
    rows = as_queries(queries, n_items=belief.n_items)
    gains = np.empty(len(rows))
    step = max(1, _BLOCK // len(belief.places))
    for begin in range(0, len(rows), step):
        head, left, right = rows[begin : begin + step].T
        margin = belief.dissimilarity[right] - belief.dissimilarity[left]
        chosen = belief.lapse + (1.0 - 2.0 * belief.lapse) * belief.noise.choice(margin)
        weights = belief.posterior(head)
        mixed = binary_entropy(np.einsum("ij,ij->i", weights, chosen))
        known = np.einsum("ij,ij->i", weights, binary_entropy(chosen))
        gains[begin : begin + step] = mixed - known
    return gains if include_head else gains - head_entropy(belief)[rows[:, 0]]


def uncertainty(queries: ArrayLike, belief: Belief) -> Array:
    """Entropy of each query's answer if every item sits where the embedding says.

    Cheap, but it asks most about pairs that are truly equally far, where an answer says little.

    Parameters
    ----------
    queries : array of shape (n_queries, 3)
        Rows ``(head, left, right)``.
    belief : Belief
        Positions and noise; its posterior is not used.

    Returns
    -------
    array of shape (n_queries,)
        In nats: log 2 where both answers are equally likely.
    """
    head, left, right = as_queries(queries, n_items=belief.n_items).T
    to_left, to_right = (
        np.square(belief.positions[head] - belief.positions[foot]).sum(axis=1)
        for foot in (left, right)
    )
    chosen = belief.noise.probability(to_left, to_right, belief.lapse)
    return np.asarray(binary_entropy(chosen), dtype=np.float64)


def head_entropy(belief: Belief) -> Array:
    """``H(τ_h)`` of every head: how open its place still is.

    Parameters
    ----------
    belief : Belief
        Whose posterior it is.

    Returns
    -------
    array of shape (n_items,)
        In nats: 0 where the place is certain.
    """
    weights = belief.posterior()
    return np.asarray(-(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=1))
