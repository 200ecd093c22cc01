"""Query scores: how informative is the answer to a query?

For the query (h, a, b) and a posterior τ over the places i of its head, the score is

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

from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._kernel_numpy import binary_entropy
from accelerando.crowd._posterior import Posterior, as_posterior
from accelerando.crowd._triplets import as_queries

__all__ = ["head_entropy", "information_gain", "uncertainty"]

Array = NDArray[np.float64]

_BLOCK = 1 << 18


def information_gain(
    queries: ArrayLike, model: OrdinalEmbedding | Posterior, *, include_head: bool = True
) -> Array:
    """Return the mutual information, in nats, of each query's answer and the place of its head.

    Parameters
    ----------
    queries : array of shape (n_queries, 3)
        Rows ``(head, left, right)``.
    model : OrdinalEmbedding
        A fitted embedding.
    include_head : bool, default=True
        False leaves out the entropy of the head, as Salmon and NEXT do; for comparison only.

    References
    ----------
    Tamuz et al., "Adaptively learning the crowd kernel", ICML 2011, section 5.

    Examples
    --------
    >>> answers = [[0, 1, 2], [1, 0, 2], [2, 1, 0], [3, 2, 0], [2, 3, 1], [3, 2, 1]]
    >>> model = OrdinalEmbedding(n_components=1, random_state=0).fit(answers)
    >>> gains = information_gain([[0, 1, 2], [0, 2, 3]], model)
    >>> bool((gains >= 0).all())
    True
    """
    posterior = as_posterior(model)
    rows = as_queries(queries, n_items=posterior.n_items)
    gains = np.empty(len(rows))
    step = max(1, _BLOCK // len(posterior.places))
    for begin in range(0, len(rows), step):
        head, left, right = rows[begin : begin + step].T
        margin = posterior.dissimilarity[right] - posterior.dissimilarity[left]
        chosen = posterior.lapse + (1.0 - 2.0 * posterior.lapse) * posterior.noise.choice(margin)
        weights = posterior.probabilities(head)
        mixed = binary_entropy(np.einsum("ij,ij->i", weights, chosen))
        known = np.einsum("ij,ij->i", weights, binary_entropy(chosen))
        gains[begin : begin + step] = mixed - known
    return gains if include_head else gains - head_entropy(posterior)[rows[:, 0]]


def uncertainty(queries: ArrayLike, model: OrdinalEmbedding | Posterior) -> Array:
    """Return the entropy of each query's answer if every item is at its position.

    Cheap, but it prefers pairs that are truly equally far, where an answer says little.

    Parameters
    ----------
    queries : array of shape (n_queries, 3)
        Rows ``(head, left, right)``.
    model : OrdinalEmbedding
        A fitted embedding.

    Returns
    -------
    array of shape (n_queries,)
        In nats: log 2 where both answers are equally likely.
    """
    posterior = as_posterior(model)
    head, left, right = as_queries(queries, n_items=posterior.n_items).T
    to_left, to_right = (
        np.square(posterior.positions[head] - posterior.positions[foot]).sum(axis=1)
        for foot in (left, right)
    )
    chosen = posterior.noise.probability(to_left, to_right, posterior.lapse)
    return np.asarray(binary_entropy(chosen), dtype=np.float64)


def head_entropy(model: OrdinalEmbedding | Posterior) -> Array:
    """Return ``H(τ_h)``, the entropy of the place of every head.

    Parameters
    ----------
    model : OrdinalEmbedding
        A fitted embedding.

    Returns
    -------
    array of shape (n_items,)
        In nats: 0 where the place is certain.
    """
    weights = as_posterior(model).probabilities()
    return np.asarray(-(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=1))
