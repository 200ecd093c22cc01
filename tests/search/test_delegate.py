"""Methods of the best model."""

import dask
import dask.array as da
import numpy as np
import pytest
from scipy.stats import loguniform
from sklearn.base import BaseEstimator, ClassifierMixin, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import SGDClassifier, SGDRegressor

from accelerando.search._delegate import _by_block

from .estimators import Counter
from .searches import counters, hyperband


def test_a_regressor(data):
    X, y = data
    search = hyperband(SGDRegressor(), {"alpha": loguniform(1e-5, 1)}).fit(X, y.astype(float))
    assert not hasattr(search, "predict_proba")
    assert search.predict(X).dtype == float


def test_nothing_is_delegated_before_the_search_is_fitted(data):
    search = hyperband()
    with pytest.raises(NotFittedError):
        search.predict(data[0])
    assert not hasattr(search, "n_features_in_")
    assert hasattr(search, "predict")
    assert not hasattr(search, "transform")  # SGDClassifier has none


def test_the_type_of_the_best_model_is_the_type_of_the_search():
    assert is_classifier(hyperband(SGDClassifier()))
    assert not is_classifier(hyperband(SGDRegressor(), {"alpha": [1.0]}))


def test_blocks_of_a_dask_array_are_predicted_lazily():
    X = da.zeros((6, 4), chunks=(2, 2))
    shapes = []

    def predict(rows):
        shapes.append(rows.shape)
        return rows.sum(axis=1)

    lazy = _by_block(predict, X, meta=np.empty(0))
    assert shapes == []
    assert lazy.compute(scheduler="synchronous").shape == (6,)
    assert set(shapes) == {(2, 4)}  # all columns of a row in one block


def test_columns_of_the_result_are_found_with_one_row():
    lazy = _by_block(lambda rows: np.ones((len(rows), 3)), da.zeros((6, 4), chunks=2), None)
    assert (lazy.shape, lazy.chunks) == ((6, 3), ((2, 2, 2), (3,)))
    assert _by_block(len, [1, 2, 3], None) == 3


def test_the_deciding_metric_scores(data):
    scoring = {"constant": lambda model, X, y: 0.25, "accuracy": "accuracy"}
    search = hyperband(scoring=scoring, refit="constant", max_iter=1).fit(*data)
    assert search.score(*data) == 0.25


def test_predict_of_dask_arrays_with_any_number_of_dimensions():
    class Sums(Counter):
        def predict(self, X):
            return X.reshape(len(X), -1).sum(axis=1)

        def transform(self, X):
            return np.stack([X, X], axis=-1)

    for shape in ((6,), (6, 2), (6, 2, 3), (6, 2, 3, 2)):
        X = np.arange(np.prod(shape), dtype=float).reshape(shape)
        search = counters(max_iter=1)
        search.best_estimator_ = Sums()
        lazy = da.from_array(X, chunks=(2, *[1] * (len(shape) - 1)))
        np.testing.assert_array_equal(search.predict(lazy).compute(), search.predict(X))
        assert search.transform(lazy).shape == (*shape, 2)
        np.testing.assert_array_equal(search.transform(lazy).compute(), search.transform(X))


@pytest.mark.parametrize("scoring", [None, "roc_auc", "accuracy"])
def test_a_score_of_dask_data_leaves_X_where_it_is(scoring, data):
    X, y = data[0], (data[1] > 0).astype(int)
    search = hyperband(scoring=scoring).fit(X, y)
    largest = []

    def block(part):
        largest.append(len(part))
        return part

    lazy = da.from_array(X, chunks=(100, 4)).map_blocks(block, dtype=X.dtype)
    best, scorer = search.best_estimator_, search.scorer_
    assert search.score(lazy, da.from_array(y, chunks=100)) == pytest.approx(scorer(best, X, y))
    seen = []
    search.best_estimator_ = Watched(best, seen)
    with dask.config.set(scheduler="threads"):  # also if a test before has left a client
        search.score(lazy, da.from_array(y, chunks=100))
    assert max(seen) == 100


class Watched(ClassifierMixin, BaseEstimator):
    def __init__(self, model, seen):
        self.model, self.seen = model, seen
        self.classes_ = model.classes_

    def predict(self, X):
        self.seen.append(len(X))
        return self.model.predict(X)

    def decision_function(self, X):
        self.seen.append(len(X))
        return self.model.decision_function(X)
