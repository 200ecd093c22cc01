"""Successive halving: one bracket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerando.search._base import BaseSearchCV
from accelerando.search._bracket_run import BracketRun
from accelerando.search._halving import successive_halving
from accelerando.search._parameters import search_class
from accelerando.search._plan import Bracket, halving_bracket

__all__ = ["SuccessiveHalvingSearchCV"]


@search_class
class SuccessiveHalvingSearchCV(BaseSearchCV):
    """Successive halving: one bracket, from many models to few, with ever more calls per model.

    Parameters
    ----------
    n_initial_parameters : int, default=10
        Number of models at the start.
    n_initial_iter : int, optional
        Calls of the first rung. By default the last survivor reaches ``max_iter``; without
        ``max_iter`` it is 1.
    max_iter : int, optional
        Upper bound for the calls of a model.
    aggressiveness : int, default=3
        One in ``aggressiveness`` models survives a rung and gets ``aggressiveness`` times as many
        calls.

    References
    ----------
    K. Jamieson and A. Talwalkar. Non-stochastic best arm identification and hyperparameter
    optimization. AISTATS 2016.

    Examples
    --------
    >>> from sklearn.linear_model import SGDClassifier
    >>> search = SuccessiveHalvingSearchCV(SGDClassifier(), {"alpha": [1e-4, 1e-2]}, max_iter=27)
    >>> search.metadata
    {'partial_fit_calls': 66, 'n_models': 10, 'max_iter': 27}
    """

    n_initial_parameters: int = 10
    n_initial_iter: int | None = None
    max_iter: int | None = None
    aggressiveness: int = 3
    test_size: float | int | None = None
    patience: bool | int = False
    tol: float | None = 1e-3
    random_state: Any = None
    scoring: Any = None
    verbose: bool | float = False
    prefix: str = ""
    predict_meta: Any = None
    predict_proba_meta: Any = None
    transform_meta: Any = None

    def _brackets(self) -> tuple[Bracket, ...]:
        return (
            halving_bracket(
                self.n_initial_parameters, self.n_initial_iter, self.aggressiveness, self.max_iter
            ),
        )

    def _described(self, metadata: dict[str, Any]) -> dict[str, Any]:
        (bracket,) = metadata.pop("brackets")
        return {**metadata, "max_iter": max(bracket["decisions"], default=0)}  # as in Dask-ML

    def _bracket_runs(self, n_slots: Callable[[], int] = lambda: 1) -> list[BracketRun]:
        (bracket,) = self._brackets()
        return [BracketRun(bracket, successive_halving(bracket))]
