"""Methods of the best model, such as ``predict``, as methods of the search."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, RegressorMixin
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from accelerando._cluster.anywhere import anywhere
from accelerando._sklearn import BaseScorer as _BaseScorer
from accelerando._sklearn import PassthroughScorer as _PassthroughScorer
from accelerando.search._limits import current, where_models_load

__all__ = ["BestModelMixin"]


def _best_has(name: str) -> Callable[[Any], bool]:
    def check(search: Any) -> bool:
        # Raises the AttributeError of the model, which may explain why the method is missing.
        getattr(getattr(search, "best_estimator_", search.estimator), name)
        return True

    return check


class BestModelMixin(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Delegates ``predict`` and other methods to the best model.

    For a Dask array or DataFrame the result is a Dask array.
    """

    client: Any

    def _best(self) -> Any:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    @property
    def classes_(self) -> Any:
        """Class labels of the best model, if it is a classifier."""
        return self._best().classes_

    @property
    def n_features_in_(self) -> int:
        """Number of features seen by the best model."""
        try:
            best = self._best()
        except ValueError as error:  # NotFittedError; hasattr must see an AttributeError
            raise AttributeError(f"{type(self).__name__} has no n_features_in_ yet") from error
        return int(best.n_features_in_)

    @available_if(_best_has("predict"))  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Any:
        """Predict with the best model."""
        return _by_block(self._best().predict, X, self.predict_meta)

    @available_if(_best_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Return the class probabilities of the best model."""
        return _by_block(self._best().predict_proba, X, self.predict_proba_meta)

    @available_if(_best_has("predict_log_proba"))  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithms of the class probabilities of the best model."""
        return _by_block(self._best().predict_log_proba, X, self.predict_proba_meta)

    @available_if(_best_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """Return the decision function of the best model."""
        return _by_block(self._best().decision_function, X, None)

    @available_if(_best_has("transform"))  # type: ignore[untyped-decorator]
    def transform(self, X: Any) -> Any:
        """Transform with the best model."""
        return _by_block(self._best().transform, X, self.transform_meta)

    @available_if(_best_has("inverse_transform"))  # type: ignore[untyped-decorator]
    def inverse_transform(self, X: Any) -> Any:
        """Invert ``transform`` with the best model."""
        return _by_block(self._best().inverse_transform, X, None)

    def score(self, X: Any, y: Any = None) -> float:
        """Score the best model with the metric that the search maximized."""
        best = self._best()
        scorer = self.scorer_[self.refit] if isinstance(self.scorer_, dict) else self.scorer_
        with current(self.client):
            if dask.is_dask_collection(X):
                score = _remote_score(scorer, best, X, y)
            else:
                (y,) = dask.compute(y)
                score = scorer(best, X) if y is None else scorer(best, X, y)
        return float(score[self.refit] if isinstance(score, dict) else score)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if not hasattr(self.estimator, "__sklearn_tags__"):
            return tags  # any object with get_params, set_params, partial_fit and score
        inner = get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags = inner.classifier_tags
        tags.regressor_tags = inner.regressor_tags
        tags.target_tags = inner.target_tags
        tags.input_tags.pairwise = inner.input_tags.pairwise
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.array_api_support = inner.array_api_support
        return tags


def _by_block(method: Callable[[Any], Any], X: Any, meta: Any) -> Any:
    if hasattr(X, "to_delayed") and hasattr(X, "_meta_nonempty"):
        return _by_partition(method, X, meta)
    if not hasattr(X, "map_blocks"):
        return method(X)
    import dask.array as da

    X = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    if meta is None:
        meta = np.asarray(method(np.zeros((1, *X.shape[1:]), dtype=X.dtype)))
    late = dask.delayed(anywhere(method), pure=False)
    rest = meta.shape[1:]
    blocks = np.ravel(np.asarray(X.to_delayed(), dtype=object))
    return da.concatenate(
        [
            da.from_delayed(late(block), shape=(length, *rest), dtype=meta.dtype)
            for block, length in zip(blocks, X.chunks[0], strict=True)
            if length != 0
        ]
    )


class _Remote:
    """The best model with methods that predict Dask data block by block, where the blocks are.

    A scorer that is called with it receives predictions, and X never comes to this process.
    """

    def __init__(self, best: Any) -> None:
        self._best = best

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._best, name)
        if name not in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
            return value

        def by_block(X: Any) -> Any:
            return np.asarray(_by_block(value, X, None).compute(**where_models_load()))

        by_block.__name__ = name  # scikit-learn recognizes the method by its name
        return by_block

    def __sklearn_tags__(self) -> Any:
        return get_tags(self._best)

    def __sklearn_is_fitted__(self) -> bool:
        return True


def _remote_score(scorer: Callable[..., Any], best: Any, X: Any, y: Any) -> Any:
    """Score Dask data without bringing X here."""
    own = getattr(type(best), "score", None)
    plain = own in (ClassifierMixin.score, RegressorMixin.score)
    if isinstance(scorer, _BaseScorer):
        return scorer(_Remote(best), X, *dask.compute(y))
    if isinstance(scorer, _PassthroughScorer) and plain and own is not None:
        return own(_Remote(best), X, *dask.compute(y))
    targets = () if y is None else (y,)  # a score that may use all of X: on one worker
    late = dask.delayed(anywhere(functools.partial(scorer, best)), pure=False)
    return late(X, *targets).compute(**where_models_load())


def _by_partition(method: Callable[[Any], Any], X: Any, meta: Any) -> Any:
    """Apply `method` to the partitions of a Dask DataFrame, because models check column names."""
    import dask.array as da

    if meta is None:
        meta = np.asarray(method(X._meta_nonempty))
    late = dask.delayed(anywhere(method), pure=False)
    shape = (np.nan, *meta.shape[1:])  # the lengths of the partitions are unknown
    return da.concatenate(
        [da.from_delayed(late(part), shape=shape, dtype=meta.dtype) for part in X.to_delayed()]
    )
