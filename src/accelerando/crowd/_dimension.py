"""How many dimensions? As many as predict answers that the fit has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._noise import noise_model
from accelerando.crowd._triplets import as_triplets

__all__ = ["DimensionChoice", "select_dimension"]

# In nats per answer: with nearly noiseless answers even this much is "significant".
_TOO_SMALL_TO_MATTER = 1e-3


@dataclass(frozen=True)
class DimensionChoice:
    """What :func:`select_dimension` found.

    Attributes
    ----------
    best : int
        The smallest number of dimensions that is not clearly worse than the best one.
    dimensions : tuple of int
    log_likelihood, standard_error, accuracy : array of shape (n_dimensions,)
        Mean over held-out answers, error of that mean, share of them predicted.
    """

    best: int
    dimensions: tuple[int, ...]
    log_likelihood: NDArray[np.float64]
    standard_error: NDArray[np.float64]
    accuracy: NDArray[np.float64]


def select_dimension(
    triplets: ArrayLike,
    answers: ArrayLike | None = None,
    *,
    dimensions: Sequence[int] = (1, 2, 3, 4, 5),
    estimator: OrdinalEmbedding | None = None,
    folds: int = 5,
    random_state: int | None = None,
) -> DimensionChoice:
    """Choose the number of dimensions by cross-validated likelihood.

    Each answer is predicted by an embedding fitted without it. The mean log-likelihood of these
    predictions is compared *answer by answer* with that of the best dimension; the smallest
    dimension that falls behind by less than two standard errors of the difference wins. This is
    the rule of Breiman et al. (1984) on paired differences, which are far less noisy than the
    values: an extra dimension has to earn its place. Gains below 0.001 per answer never do.

    Parameters
    ----------
    triplets, answers : array
        As in :meth:`OrdinalEmbedding.fit`.
    dimensions : sequence of int, default=(1, 2, 3, 4, 5)
        What to try.
    estimator : OrdinalEmbedding, optional
        Noise model, lapse rate and starts to use.
    folds : int, default=5
        Parts of the cross-validation.
    random_state : int, optional
        Seed of the split and of the fits.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> line = rng.normal(size=12)
    >>> queries = np.array([rng.permutation(12)[:3] for _ in range(600)])
    >>> nearer = np.abs(line[queries[:, 0]] - line[queries[:, 1]]) < np.abs(
    ...     line[queries[:, 0]] - line[queries[:, 2]])
    >>> select_dimension(queries, nearer, dimensions=(1, 2, 3), random_state=0).best
    1
    """
    rows = as_triplets(triplets, answers)
    tried = tuple(sorted({int(d) for d in dimensions}))
    if not tried or tried[0] < 1:
        raise ValueError(f"dimensions must name whole numbers of at least 1; got {dimensions!r}.")
    if not 2 <= folds <= len(rows):
        raise ValueError(f"folds must lie between 2 and the {len(rows)} answers; got {folds}.")
    base = OrdinalEmbedding() if estimator is None else estimator
    if not noise_model(base.noise).probabilistic:
        raise ValueError(
            f"estimator must use a noise model with probabilities; {base.noise!r} has a hinge loss."
        )
    n_items = base.n_items or int(rows.max()) + 1
    fold = np.random.default_rng(random_state).permutation(len(rows)) % folds
    likelihood = np.empty((len(tried), len(rows)))
    accuracy = np.zeros(len(tried))
    for index, n_components in enumerate(tried):
        for part in range(folds):
            test = fold == part
            model = clone(base).set_params(
                n_components=n_components, n_items=n_items, random_state=random_state
            )
            model.fit(rows[~test])
            chosen = model.predict_proba(rows[test])[:, 0]
            likelihood[index, test] = np.log(np.maximum(chosen, 1e-12))
            accuracy[index] += model.score(rows[test]) * test.mean()
    means = likelihood.mean(axis=1)
    top = int(np.argmax(means))
    behind = likelihood[top] - likelihood
    errors = behind.std(axis=1) / np.sqrt(len(rows))
    good = np.flatnonzero(behind.mean(axis=1) <= np.maximum(2.0 * errors, _TOO_SMALL_TO_MATTER))
    return DimensionChoice(
        best=tried[int(good[0])],
        dimensions=tried,
        log_likelihood=means,
        standard_error=likelihood.std(axis=1) / np.sqrt(len(rows)),
        accuracy=accuracy,
    )
