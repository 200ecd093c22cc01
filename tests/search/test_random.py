"""Random search and grids."""

import pytest
from sklearn.linear_model import SGDClassifier

from accelerando.search import (
    RandomIncrementalSearchCV,
)

from .searches import SPACE


def test_a_grid(data):
    search = RandomIncrementalSearchCV(
        SGDClassifier(), {"alpha": [1e-4, 1e-2], "penalty": ["l1", "l2"]}, "grid", max_iter=3,
        fits_per_score=2, client=None,
    ).fit(*data)  # fmt: skip
    assert [row["partial_fit_calls"] for row in search.model_history_[0]] == [2, 3]
    assert len(search.cv_results_["params"]) == 4
    with pytest.raises(ValueError, match="distribution, which has no grid"):
        RandomIncrementalSearchCV(SGDClassifier(), SPACE, "grid").fit(*data)


def test_wrong_parameters_are_named():
    def plan(**options):
        RandomIncrementalSearchCV(SGDClassifier(), SPACE, **options).metadata  # noqa: B018

    with pytest.raises(ValueError, match=r"must be an integer of at least 1 or 'grid'\. Got 'all'"):
        plan(n_initial_parameters="all")
    with pytest.raises(ValueError, match="'fits_per_score' parameter of RandomIncrementalSearchCV"):
        plan(fits_per_score=0)
    with pytest.raises(ValueError, match="'max_iter' parameter of RandomIncrementalSearchCV"):
        plan(max_iter=True)


def test_every_model_gets_all_calls(data):
    search = RandomIncrementalSearchCV(SGDClassifier(), SPACE, 3, max_iter=4, client=None)
    assert search.fit(*data).cv_results_["partial_fit_calls"].tolist() == [4, 4, 4]
    assert len(search.history_) == 12  # a score after each call
