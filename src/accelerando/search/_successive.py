"""Successive halving: one bracket."""

from __future__ import annotations

import math
from typing import Any

from accelerando.search._base import BaseSearchCV
from accelerando.search._halving import successive_halving
from accelerando.search._plan import Bracket, halving_bracket
from accelerando.search._sample import Sampler
from accelerando.search._track import Track, track

__all__ = ["SuccessiveHalvingSearchCV"]


class SuccessiveHalvingSearchCV(BaseSearchCV):
    """Successive halving: one bracket, from many short trained models to few long trained ones.

    Parameters
    ----------
    n_initial_parameters : int, default=10
        How many models start.
    n_initial_iter : int, optional
        Calls of the first rung. Default: as many as let the last survivor reach ``max_iter``, or 1
        if that is open too.
    max_iter : int, optional
        The most calls of a model.
    aggressiveness : int, default=3
        One in ``aggressiveness`` models survives a rung, for as many times the calls.
    others
        As for :class:`HyperbandSearchCV`; ``sampler="tpe"`` needs more than one bracket.

    References
    ----------
    K. Jamieson and A. Talwalkar. Non-stochastic best arm identification and hyperparameter
    optimization. AISTATS 2016.

    Examples
    --------
    >>> from sklearn.linear_model import SGDClassifier
    >>> search = SuccessiveHalvingSearchCV(SGDClassifier(), {"alpha": [1e-4, 1e-2]}, max_iter=27)
    >>> search.metadata["brackets"][0]["decisions"]
    [3, 9, 27]
    """

    def __init__(
        self,
        estimator: Any,
        parameters: Any,
        n_initial_parameters: int = 10,
        n_initial_iter: int | None = None,
        max_iter: int | None = None,
        aggressiveness: int = 3,
        test_size: float | int | None = None,
        patience: bool | int = False,
        tol: float = 1e-3,
        random_state: Any = None,
        scoring: Any = None,
        verbose: bool | float = False,
        prefix: str = "",
        predict_meta: Any = None,
        predict_proba_meta: Any = None,
        transform_meta: Any = None,
        *,
        refit: str | bool = True,
        client: Any = "default",
        priority: str = "score",
        slice_seconds: float = 1.5,
        chunk_size: int | None = None,
        sampler: str = "random",
        error_score: float | str = math.nan,
        max_seconds: float | None = None,
        max_calls: int | None = None,
        checkpoint: Any = None,
    ) -> None:
        self.estimator = estimator
        self.parameters = parameters
        self.n_initial_parameters = n_initial_parameters
        self.n_initial_iter = n_initial_iter
        self.max_iter = max_iter
        self.aggressiveness = aggressiveness
        self.test_size = test_size
        self.patience = patience
        self.tol = tol
        self.random_state = random_state
        self.scoring = scoring
        self.verbose = verbose
        self.prefix = prefix
        self.predict_meta = predict_meta
        self.predict_proba_meta = predict_proba_meta
        self.transform_meta = transform_meta
        self.refit = refit
        self.client = client
        self.priority = priority
        self.slice_seconds = slice_seconds
        self.chunk_size = chunk_size
        self.sampler = sampler
        self.error_score = error_score
        self.max_seconds = max_seconds
        self.max_calls = max_calls
        self.checkpoint = checkpoint

    def _brackets(self) -> tuple[Bracket, ...]:
        return (
            halving_bracket(
                self.n_initial_parameters, self.n_initial_iter, self.aggressiveness, self.max_iter
            ),
        )

    def _tracks(self, sampler: Sampler) -> list[Track]:
        (bracket,) = self._brackets()
        return [track(bracket, successive_halving(bracket))]
