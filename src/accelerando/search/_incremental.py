"""Random search and grid search of models that are trained in steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from accelerando._validation import check, check_integer, check_number, is_integer
from accelerando.search import _checks as checks
from accelerando.search._base import BaseSearchCV
from accelerando.search._bracket_run import BracketRun
from accelerando.search._halving import successive_halving, train_all
from accelerando.search._parameters import search_class
from accelerando.search._plan import Bracket, Rung, inverse_decay_bracket
from accelerando.search._sample import GridSampler, Sampler, check_space, grid_size

__all__ = ["IncrementalSearchCV", "InverseDecaySearchCV"]


class _RandomOrGrid(BaseSearchCV):
    """A search of one bracket whose models are drawn, or are the points of a grid."""

    # Positional parameters: both searches have them, at the positions of Dask-ML's class.
    n_initial_parameters: int | str
    fits_per_score: int
    max_iter: int

    _without_columns = ("bracket", "job_calls")  # as in Dask-ML: there is one bracket

    @property
    def _is_grid(self) -> bool:
        return isinstance(self.n_initial_parameters, str) and self.n_initial_parameters == "grid"

    def _n_models(self) -> int:
        allowed = "an integer of at least 1 (max_iter < 1 is not supported)"
        check(is_integer(self.max_iter, 1), self, "max_iter", allowed, self.max_iter)
        check_integer(self, "fits_per_score", self.fits_per_score)
        n_models = self.n_initial_parameters
        check_integer(self, "n_initial_parameters", n_models, also={"grid": "'grid'"})
        if self._is_grid:
            n_models = len(GridSampler(self._lists()))
        else:
            # As in scikit-learn: there are no more models than combinations.
            n_models = min(n_models, grid_size(check_space(self.parameters)) or n_models)
        return int(n_models)

    def _lists(self) -> list[Any]:
        spaces = check_space(self.parameters)
        for space in spaces:
            for name, values in space.items():
                if hasattr(values, "rvs"):
                    raise ValueError(
                        f"parameters[{name!r}] is a distribution, which has no grid. Pass a list, "
                        "or an integer as n_initial_parameters."
                    )
        return spaces

    def _sampler(self, seed: int) -> Sampler:
        if self._is_grid:
            return GridSampler(self._lists())
        checks.check_size(self, int(self.n_initial_parameters))
        return super()._sampler(seed)


@search_class
class IncrementalSearchCV(_RandomOrGrid):
    """Random or grid search: every model gets ``max_iter`` calls unless patience stops it.

    Parameters
    ----------
    n_initial_parameters : int or "grid", default=10
        Number of models, or "grid" for all combinations of lists.
    decay_rate : None
        Only for programs that were written for Dask-ML. Anything but None warns that
        :class:`InverseDecaySearchCV` has this parameter.
    fits_per_score : int, default=1
        Calls between scores.
    max_iter : int, default=100
        Calls of each model.
    scores_per_fit : int, optional
        The former name of ``fits_per_score`` in Dask-ML. It warns.

    Examples
    --------
    >>> from sklearn.linear_model import SGDClassifier
    >>> search = IncrementalSearchCV(
    ...     SGDClassifier(), {"alpha": [1e-4, 1e-2], "penalty": ["l1", "l2"]}, "grid", max_iter=5
    ... )
    >>> search.metadata["n_models"], search.metadata["partial_fit_calls"]
    (4, 20)
    """

    n_initial_parameters: int | str = 10
    decay_rate: float | None = None
    test_size: float | int | None = None
    patience: bool | int = False
    tol: float | None = 1e-3
    fits_per_score: int = 1
    max_iter: int = 100
    random_state: Any = None
    scoring: Any = None
    verbose: bool | float = False
    prefix: str = ""
    scores_per_fit: int | None = None
    predict_meta: Any = None
    predict_proba_meta: Any = None
    transform_meta: Any = None

    def fit(self, X: Any, y: Any = None, *, groups: Any = None, **fit_params: Any) -> Any:
        """Search; see :meth:`HyperbandSearchCV.fit`."""
        if self.decay_rate is not None:
            warnings.warn(
                "decay_rate is deprecated and not used by IncrementalSearchCV "
                f"(decay_rate={self.decay_rate!r}). Use InverseDecaySearchCV, or pass None.",
                FutureWarning,
                stacklevel=2,
            )
        if self.scores_per_fit is not None:
            check_integer(self, "scores_per_fit", self.scores_per_fit)
            if self.fits_per_score != 1:
                raise ValueError("Specify fits_per_score, not scores_per_fit.")
            warnings.warn(
                "scores_per_fit has been deprecated since Dask-ML v1.4.0. "
                f"Specify fits_per_score={self.scores_per_fit} instead.",
                stacklevel=2,
            )
        return super().fit(X, y, groups=groups, **fit_params)

    def _brackets(self) -> tuple[Bracket, ...]:
        return (Bracket(0, (Rung(self._n_models(), self.max_iter),)),)

    def _bracket_runs(self, n_slots: Callable[[], int] = lambda: 1) -> list[BracketRun]:
        (bracket,) = self._brackets()
        return [BracketRun(bracket, train_all(bracket.n_models, bracket.max_calls))]

    def _score_every(self, patience: int | None) -> int | None:
        return self.scores_per_fit or self.fits_per_score


@search_class
class InverseDecaySearchCV(_RandomOrGrid):
    """Random or grid search in which the number of models decays with the number of calls.

    After k calls about ``n_initial_parameters / (k + 1) ** decay_rate`` of the best models remain.
    The search ends when one would remain, or at ``max_iter`` calls.

    Parameters
    ----------
    n_initial_parameters : int or "grid", default=10
        Number of models, or "grid" for all combinations of lists.
    fits_per_score : int, default=1
        Calls between scores.
    max_iter : int, default=100
        Most calls of a model.
    decay_rate : float, default=1.0
        How fast the number of models decays; 0 keeps all.

    Examples
    --------
    >>> from sklearn.linear_model import SGDClassifier
    >>> search = InverseDecaySearchCV(
    ...     SGDClassifier(), {"alpha": [10.0**-k for k in range(20)]}, 20, max_iter=10
    ... )
    >>> search.metadata["brackets"][0]["decisions"]
    [1, 2, 3, 4, 5]
    """

    n_initial_parameters: int | str = 10
    test_size: float | int | None = None
    patience: bool | int = False
    tol: float | None = 1e-3
    fits_per_score: int = 1
    max_iter: int = 100
    random_state: Any = None
    scoring: Any = None
    verbose: bool | float = False
    prefix: str = ""
    decay_rate: float = 1.0
    predict_meta: Any = None
    predict_proba_meta: Any = None
    transform_meta: Any = None

    def _brackets(self) -> tuple[Bracket, ...]:
        check_number(self, "decay_rate", self.decay_rate, minimum=0)
        n_models = self._n_models()
        bracket = inverse_decay_bracket(
            n_models, self.decay_rate, self.fits_per_score, self.max_iter
        )
        return (bracket,)

    def _bracket_runs(self, n_slots: Callable[[], int] = lambda: 1) -> list[BracketRun]:
        (bracket,) = self._brackets()
        return [BracketRun(bracket, successive_halving(bracket))]

    def _score_every(self, patience: int | None) -> int | None:
        return self.fits_per_score
