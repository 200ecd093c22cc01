"""Classes of a classifier are found in the targets, also in those on a cluster."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neural_network import MLPClassifier

from accelerando.search._classes import find_classes

from .estimators import LearnsOne
from .searches import hyperband


def test_classes_are_found_for_classifiers_that_need_them():
    y = np.array([3, 1, 3])
    assert find_classes(SGDClassifier(), y, {})["classes"].tolist() == [1, 3]
    lazy = da.from_array(y, chunks=1)
    assert find_classes(SGDClassifier(), lazy, {})["classes"].tolist() == [1, 3]
    assert find_classes(SGDClassifier(), y, {"classes": [1, 2, 3]}) == {}
    assert find_classes(SGDRegressor(), y, {}) == find_classes(LearnsOne(), y, {}) == {}


@pytest.mark.parametrize("lazy", [False, True])
def test_every_output_has_its_classes(lazy):
    y = np.array([[0, 5], [1, 7], [1, 9]])
    y = da.from_array(y, chunks=(1, 2)) if lazy else y
    found = find_classes(MultiOutputClassifier(SGDClassifier()), y, {})["classes"]
    assert [one.tolist() for one in found] == [[0, 1], [5, 7, 9]]
    labels = np.array([[0, 1], [1, 1]])  # several labels of one output
    assert find_classes(MLPClassifier(), labels, {})["classes"].tolist() == [0, 1]


def test_a_search_over_several_outputs(data):
    X, y = data
    model = MultiOutputClassifier(SGDClassifier(random_state=0))
    search = hyperband(model, {"estimator__alpha": [1e-4, 1e-2]}, max_iter=3)
    assert search.fit(X, np.c_[y, y == 1]).predict(X).shape == (600, 2)


def test_a_frame_with_one_column_has_classes():
    frame = dd.from_pandas(pd.DataFrame({"y": ["no", "yes", "no"]}), npartitions=2)
    assert find_classes(SGDClassifier(), frame, {})["classes"].tolist() == ["no", "yes"]


def test_classes_may_be_on_the_cluster():
    y = da.from_array(np.array([3, 1, 3]), chunks=1)
    assert find_classes(SGDClassifier(), y, {"classes": da.unique(y)})["classes"].tolist() == [1, 3]


def test_labels_that_no_classifier_can_learn_are_refused():
    with pytest.raises(ValueError, match=r"labels of one type\. .* types \['NoneType', 'str'\]"):
        find_classes(SGDClassifier(), np.array([None, "b"], object), {})
    for y in (np.array([0.0, np.nan]), da.from_array(np.array([0.0, np.nan]))):
        with pytest.raises(ValueError, match="y must have a label in every row"):
            find_classes(SGDClassifier(), y, {})
