"""Methods of the best model."""

import dask.array as da
import numpy as np
import pytest
from scipy.stats import loguniform
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import SGDClassifier, SGDRegressor

from accelerando.search._delegate import _by_block

from .searches import hyperband


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
