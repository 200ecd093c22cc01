"""Starting points of a fit: spectral (one eigendecomposition), warm or random.

An answer says "winner is like head, loser is not". Counting +1 and −1 for these pairs gives a rough
similarity matrix. Its leading eigenvectors (classical scaling) order the items well enough that the
optimizer starts near the minimum and needs half the steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse import coo_array
from scipy.sparse.linalg import LinearOperator, eigsh

from accelerando.crowd._triplets import Triplets

Array = NDArray[np.float64]

# Leading eigenvectors of a dense matrix of this many items take a few hundredths of a second.
_DENSE_UP_TO = 600


def starting_points(
    triplets: Triplets,
    weights: Array,
    shape: tuple[int, int],
    *,
    warm: Array | None,
    n_cold: int,
    rng: np.random.Generator,
) -> list[Array]:
    """Return the warm start, if given, and `n_cold` cold ones: one spectral, the others random."""
    n_items, n_components = shape
    starts: list[Array] = []
    if warm is not None:
        new = 0.01 * random_start(n_items - len(warm), n_components, rng)
        starts.append(np.concatenate([warm, new]))
    if n_cold:
        starts.append(spectral_start(triplets, weights, n_items, n_components, rng=rng))
    starts.extend(random_start(n_items, n_components, rng) for _ in range(n_cold - 1))
    return starts


def random_start(n_items: int, n_components: int, rng: np.random.Generator) -> Array:
    """Return independent normal coordinates."""
    return rng.normal(size=(n_items, n_components))


def spectral_start(
    triplets: Triplets,
    weights: Array,
    n_items: int,
    n_components: int,
    *,
    rng: np.random.Generator,
) -> Array:
    """Return the leading eigenvectors of the normalized, centered similarity counts."""
    head, winner, loser = triplets.T
    similarity = coo_array(
        (np.r_[weights, -weights], (np.r_[head, head], np.r_[winner, loser])),
        shape=(n_items, n_items),
    ).tocsr()
    similarity = similarity + similarity.T
    mentions = np.bincount(triplets.ravel(), np.repeat(weights, 3), n_items) + weights.mean()
    scale = 1.0 / np.sqrt(mentions)
    k = min(n_components, n_items - 1)
    if n_items <= _DENSE_UP_TO:
        full = similarity.toarray() * scale[:, None] * scale
        full -= full.mean(axis=0)
        full -= full.mean(axis=1)[:, None]
        values, vectors = eigh(full, subset_by_index=(n_items - k, n_items - 1))
    else:

        def centered(vector: Array) -> Array:
            vector = vector.ravel()
            product = scale * (similarity @ (scale * (vector - vector.mean())))
            return np.asarray(product - product.mean())

        operator = LinearOperator((n_items, n_items), matvec=centered, dtype=np.float64)
        values, vectors = eigsh(
            operator, k=k, which="LA", tol=1e-2, v0=rng.normal(size=n_items), ncv=max(20, 2 * k + 1)
        )
    top = np.argsort(values)[::-1][:k]
    positions = vectors[:, top] * np.sqrt(np.maximum(values[top], 1e-9))
    positions = np.pad(positions, ((0, 0), (0, n_components - k)))
    spread = float(positions.std())
    # A little noise separates items that no answer distinguishes and whose gradients are equal.
    return np.asarray(positions / (spread or 1.0)) + 0.01 * rng.normal(size=positions.shape)
