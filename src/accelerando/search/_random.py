"""Random search, and grids, trained in steps."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

from accelerando.search._base import BaseSearchCV
from accelerando.search._checks import check_positive
from accelerando.search._halving import train_all
from accelerando.search._plan import Bracket, Rung
from accelerando.search._sample import GridSampler, Sampler, check_space
from accelerando.search._track import Track, track

__all__ = ["RandomIncrementalSearchCV"]


class RandomIncrementalSearchCV(BaseSearchCV):
    """Random search in steps: every model gets ``max_iter`` calls, unless patience ends it.

    Parameters
    ----------
    n_initial_parameters : int or "grid", default=10
        How many models, or every combination of lists.
    max_iter : int, default=100
        Calls of each model.
    fits_per_score : int, default=1
        Calls between scores.
    others
        As for :class:`HyperbandSearchCV`; ``sampler="tpe"`` needs more than one bracket.

    Examples
    --------
    >>> from sklearn.linear_model import SGDClassifier
    >>> search = RandomIncrementalSearchCV(
    ...     SGDClassifier(), {"alpha": [1e-4, 1e-2], "penalty": ["l1", "l2"]}, "grid", max_iter=5
    ... )
    >>> search.metadata["n_models"], search.metadata["partial_fit_calls"]
    (4, 20)
    """

    def __init__(
        self,
        estimator: Any,
        parameters: Any,
        n_initial_parameters: int | str = 10,
        test_size: float | int | None = None,
        patience: bool | int = False,
        tol: float = 1e-3,
        fits_per_score: int = 1,
        max_iter: int = 100,
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
        self.test_size = test_size
        self.patience = patience
        self.tol = tol
        self.fits_per_score = fits_per_score
        self.max_iter = max_iter
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

    @property
    def _is_grid(self) -> bool:
        return isinstance(self.n_initial_parameters, str) and self.n_initial_parameters == "grid"

    def _brackets(self) -> tuple[Bracket, ...]:
        check_positive("max_iter", self.max_iter, kind=Integral)
        check_positive("fits_per_score", self.fits_per_score, kind=Integral)
        if self._is_grid:
            return (Bracket(0, (Rung(len(GridSampler(self._lists())), self.max_iter),)),)
        check_positive("n_initial_parameters", self.n_initial_parameters, kind=Integral)
        return (Bracket(0, (Rung(int(self.n_initial_parameters), self.max_iter),)),)

    def _lists(self) -> list[Any]:
        spaces = check_space(self.parameters)
        for space in spaces:
            for name, values in space.items():
                if hasattr(values, "rvs"):
                    raise ValueError(
                        f"parameters[{name!r}] is a distribution, which has no grid. Give a list, "
                        "or a number for n_initial_parameters."
                    )
        return spaces

    def _sampler(self, seed: int) -> Sampler:
        return GridSampler(self._lists()) if self._is_grid else super()._sampler(seed)

    def _tracks(self, sampler: Sampler) -> list[Track]:
        (bracket,) = self._brackets()
        return [track(bracket, train_all(bracket.n_models, bracket.max_calls))]

    def _score_every(self) -> int | None:
        return self.fits_per_score
