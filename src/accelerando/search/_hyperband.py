"""Hyperband: all brackets of Algorithm 1, at the same time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from accelerando.search._base import BaseSearchCV
from accelerando.search._bracket_run import BracketRun
from accelerando.search._checks import patience_calls
from accelerando.search._halving import successive_halving
from accelerando.search._parameters import search_class
from accelerando.search._plan import Bracket, hyperband_brackets

__all__ = ["HyperbandSearchCV"]


@search_class
class HyperbandSearchCV(BaseSearchCV):
    """Hyperband: successive halving in brackets that differ in how early they drop models.

    The first bracket trains many models and drops most of them after one call. The last one trains
    few models and drops none. The parameters and attributes are those of Dask-ML's class of the
    same name. The search runs on the current Dask client if there is one, otherwise in this
    process; the result is the same.

    Parameters
    ----------
    max_iter : int, default=81
        Calls of ``partial_fit`` for the longest-trained models.
    aggressiveness : int, default=3
        One in ``aggressiveness`` models survives a rung. 4 suits a first search.
    patience : bool or int, default=False
        Stop a model whose score has not improved by at least ``tol`` in the last ``patience``
        calls. True is ``max_iter // aggressiveness``.

    References
    ----------
    L. Li, K. Jamieson, G. DeSalvo, A. Rostamizadeh and A. Talwalkar. Hyperband: a novel
    bandit-based approach to hyperparameter optimization. JMLR 18(185), 2018.

    Examples
    --------
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.linear_model import SGDClassifier
    >>> X, y = make_classification(n_samples=400, random_state=0)
    >>> search = HyperbandSearchCV(
    ...     SGDClassifier(), {"alpha": loguniform(1e-5, 1)}, max_iter=9, random_state=0
    ... ).fit(X, y)
    >>> search.metadata_["n_models"], search.metadata_["partial_fit_calls"]
    (17, 69)
    >>> search.score(X, y) > 0.8
    True
    """

    max_iter: int = 81
    aggressiveness: int = 3
    patience: bool | int = False
    tol: float | None = 1e-3
    test_size: float | int | None = None
    random_state: Any = None
    scoring: Any = None
    verbose: bool | float = False
    prefix: str = ""
    predict_meta: Any = None
    predict_proba_meta: Any = None
    transform_meta: Any = None

    def _brackets(self) -> tuple[Bracket, ...]:
        return hyperband_brackets(self.max_iter, self.aggressiveness)

    def _bracket_runs(self, n_slots: Callable[[], int] = lambda: 1) -> list[BracketRun]:
        return [BracketRun(bracket, successive_halving(bracket)) for bracket in self._brackets()]

    def _patience_calls(self) -> int | None:
        automatic = max(1, self.max_iter // self.aggressiveness)
        calls = patience_calls(self, automatic)
        if calls is not None and calls < automatic:
            warnings.warn(
                f"patience={calls} is less than max_iter // aggressiveness = {automatic}, so it "
                "stops models before Hyperband compares them. The goal of `patience` is to end "
                "models that no longer improve. Use True or a larger number.",
                stacklevel=3,
            )
        return calls

    def _model_id(self, bracket: int, model: int) -> Any:
        return f"bracket={bracket}-{model}"

    def _described(self, metadata: dict[str, Any]) -> dict[str, Any]:
        plan = {bracket.index: bracket for bracket in self._brackets()}
        for entry in metadata["brackets"]:
            bracket = plan[entry["bracket"]]
            entry["SuccessiveHalvingSearchCV params"] = {
                "n_initial_parameters": bracket.n_models,
                "n_initial_iter": bracket.rungs[0].calls,
                "max_iter": self.max_iter,
                "aggressiveness": self.aggressiveness,
                "patience": self.patience,
                "tol": self.tol,
                "test_size": self.test_size,
                "random_state": self.random_state,
                "scoring": self.scoring,
                "verbose": self.verbose,
                "prefix": self.prefix,
            }
        return metadata
