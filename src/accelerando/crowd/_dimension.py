"""Selection of the number of dimensions by cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from accelerando._validation import check, is_integer, parameter_error
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._noise import noise_model
from accelerando.crowd._triplets import as_triplets

__all__ = ["DimensionChoice", "select_dimension"]

# In nats per answer. With nearly noiseless answers even such a gain is "significant".
_TOO_SMALL_TO_MATTER = 1e-3


@dataclass(frozen=True)
class DimensionChoice:
    """Result of :func:`select_dimension`.

    Attributes
    ----------
    best : int
        The smallest number of dimensions that is not significantly worse than the best one.
    dimensions : tuple of int
        The numbers of dimensions that were tried.
    log_likelihood, standard_error, accuracy : array of shape (n_dimensions,)
        Mean log-likelihood of held-out answers, standard error of the mean, and share of held-out
        answers predicted.
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

    An embedding fitted without an answer predicts it. The log-likelihoods of these predictions are
    compared *answer by answer* with those of the best dimension. The result is the smallest
    dimension whose mean is lower by less than two standard errors of the difference. This is the
    rule of Breiman et al. (1984) on paired differences, which are far less noisy than the values.
    Gains below 0.001 nats per answer do not count.

    Parameters
    ----------
    triplets, answers : array
        As in :meth:`OrdinalEmbedding.fit`.
    dimensions : sequence of int, default=(1, 2, 3, 4, 5)
        The numbers of dimensions to try.
    estimator : OrdinalEmbedding, optional
        The estimator to fit, with its noise model, lapse rate and starts.
    folds : int, default=5
        Number of folds of the cross-validation.
    random_state : int, optional
        Seed of the split and of the fits.

    Returns
    -------
    DimensionChoice
        With the attributes ``best``, ``dimensions``, and the arrays ``log_likelihood``,
        ``standard_error`` and ``accuracy`` on held-out answers, one entry per dimension.

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
    owner = "select_dimension"
    check(bool(tried) and tried[0] >= 1, owner, "dimensions", "integers of at least 1", dimensions)
    check(
        is_integer(folds, 2) and folds <= len(rows),
        owner,
        "folds",
        f"an integer from 2 to the number of answers, {len(rows)}",
        folds,
    )
    base = OrdinalEmbedding() if estimator is None else estimator
    if base.noise != "auto":
        noise = noise_model(base.noise)
        if not noise.probabilistic:
            allowed = "an estimator whose noise model has probabilities, not a hinge loss"
            raise parameter_error(owner, "estimator", allowed, base)
        # One noise model for all dimensions: heavier tails in one of them would decide the matter.
        base = clone(base).set_params(noise=noise)
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
