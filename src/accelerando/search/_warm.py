"""Estimators without ``partial_fit`` that can continue to grow: forests and boosted trees."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from accelerando._validation import check, check_integer, is_integer

__all__ = ["WarmStart"]

GROWING = ("n_estimators", "max_iter", "iterations")
CONTINUED_BY = ("xgb_model", "init_model")  # of XGBoost and LightGBM


def _has(name: str) -> Any:
    def check_(wrapper: Any) -> bool:
        getattr(getattr(wrapper, "estimator_", wrapper.estimator), name)
        return True

    return check_


class WarmStart(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Train an estimator in steps that has only ``fit``: a call adds trees or iterations.

    It works with scikit-learn's forests, boosted trees and other estimators that have
    ``warm_start``, and with XGBoost and LightGBM. Every call should see all rows, so leave
    ``chunk_size`` of the search as it is.

    Parameters
    ----------
    estimator : estimator
        Has ``fit`` and either the parameter ``warm_start`` or, like XGBoost and LightGBM, an
        argument of ``fit`` for the model to continue from. Search its parameters with the prefix
        ``estimator__``.
    step : int, default=10
        How many trees or iterations a call adds.
    parameter : str, optional
        The parameter that grows. By default it is ``n_estimators``, ``max_iter`` or
        ``iterations``, the first that the estimator has.

    Attributes
    ----------
    estimator_ : estimator
        The trained estimator.
    calls_ : int
        Number of calls of ``partial_fit``.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.ensemble import GradientBoostingClassifier
    >>> from accelerando.search import HyperbandSearchCV
    >>> X, y = make_classification(n_samples=200, random_state=0)
    >>> trees = WarmStart(GradientBoostingClassifier(), step=2)
    >>> search = HyperbandSearchCV(
    ...     trees, {"estimator__max_depth": list(range(1, 10))}, max_iter=3, random_state=0
    ... ).fit(X, y)
    >>> search.best_estimator_.estimator_.n_estimators_ == 2 * search.n_iter_
    True
    """

    def __init__(self, estimator: Any, step: int = 10, parameter: str | None = None) -> None:
        self.estimator = estimator
        self.step = step
        self.parameter = parameter

    estimator_: Any
    calls_: int

    def _growing(self) -> str:
        known = self.estimator.get_params(deep=False)
        choices = GROWING if self.parameter is None else (self.parameter,)
        found = next((name for name in choices if name in known), None)
        if found is None:
            allowed = f"a parameter of {type(self.estimator).__name__} that counts its iterations"
            check(False, self, "parameter", allowed, self.parameter)
        return str(found)

    def _continued_by(self) -> str | None:
        """Return the argument of ``fit`` that takes the former model; None for ``warm_start``."""
        if "warm_start" in self.estimator.get_params(deep=False):
            return None
        accepted = inspect.signature(self.estimator.fit).parameters
        for name in CONTINUED_BY:
            if name in accepted:
                return name
        raise TypeError(
            f"WarmStart needs an estimator that can continue, but {type(self.estimator).__name__} "
            f"has neither the parameter warm_start nor one of {list(CONTINUED_BY)} in fit."
        )

    def partial_fit(self, X: Any, y: Any = None, **fit_params: Any) -> WarmStart:
        """Add ``step`` iterations."""
        check_integer(self, "step", self.step)
        name, argument = self._growing(), self._continued_by()
        first = not hasattr(self, "estimator_")
        before: Any = None if first else self.estimator_
        if argument is None:
            model = clone(self.estimator).set_params(warm_start=True) if first else before
            done = 0 if first else getattr(model, name)
            model.set_params(**{name: done + self.step})
        else:
            model = clone(self.estimator).set_params(**{name: self.step})
            if not first:
                fit_params = {**fit_params, argument: before}
                _seed_again(model, self.calls_)
        self.estimator_ = model.fit(X, **fit_params) if y is None else model.fit(X, y, **fit_params)
        self.calls_ = 1 if first else self.calls_ + 1
        return self

    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> WarmStart:
        """Train from the start with ``step`` iterations."""
        if hasattr(self, "estimator_"):
            del self.estimator_
        return self.partial_fit(X, y, **fit_params)

    def _model(self) -> Any:
        check_is_fitted(self, "estimator_")
        return self.estimator_

    @property
    def classes_(self) -> Any:
        """Class labels, if it is a classifier."""
        return self.estimator_.classes_

    @property
    def n_features_in_(self) -> int:
        """Number of features."""
        return int(self.estimator_.n_features_in_)

    @available_if(_has("predict"))  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Any:
        """Predict."""
        return self._model().predict(X)

    @available_if(_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities."""
        return self._model().predict_proba(X)

    @available_if(_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """Return the decision function."""
        return self._model().decision_function(X)

    @available_if(_has("score"))  # type: ignore[untyped-decorator]
    def score(self, X: Any, y: Any = None) -> float:
        """Score with the estimator's own metric."""
        return float(self._model().score(X, y))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags = inner.classifier_tags
        tags.regressor_tags = inner.regressor_tags
        tags.target_tags = inner.target_tags
        tags.input_tags = inner.input_tags
        return tags


def _seed_again(model: Any, call: int) -> None:
    """Give a model that continues another one other random numbers than those of its first calls.

    XGBoost and LightGBM seed their generators when ``fit`` begins, so with one seed the trees of
    every call would be grown on the same sampled rows and columns.
    """
    seed = model.get_params(deep=False).get("random_state")
    if is_integer(seed):
        drawn = np.random.SeedSequence([abs(int(seed)), call]).generate_state(1)[0]
        model.set_params(random_state=int(drawn >> 1))
