"""Classes of a classifier are found in the targets, also in those on a cluster."""

import dask.array as da
import numpy as np
from sklearn.linear_model import SGDClassifier, SGDRegressor

from accelerando.search._classes import find_classes

from .estimators import LearnsOne


def test_classes_are_found_for_classifiers_that_need_them():
    y = np.array([3, 1, 3])
    assert find_classes(SGDClassifier(), y, {})["classes"].tolist() == [1, 3]
    lazy = da.from_array(y, chunks=1)
    assert find_classes(SGDClassifier(), lazy, {})["classes"].tolist() == [1, 3]
    assert find_classes(SGDClassifier(), y, {"classes": [1, 2, 3]}) == {}
    assert find_classes(SGDRegressor(), y, {}) == find_classes(LearnsOne(), y, {}) == {}
