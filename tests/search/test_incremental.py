"""Random search and grids."""

import pytest
from scipy.stats import uniform
from sklearn.linear_model import SGDClassifier

from accelerando.search import IncrementalSearchCV, InverseDecaySearchCV

from .estimators import Counter
from .searches import SPACE


def test_a_grid(data):
    search = IncrementalSearchCV(
        SGDClassifier(), {"alpha": [1e-4, 1e-2], "penalty": ["l1", "l2"]}, "grid", max_iter=3,
        fits_per_score=2, client=None,
    ).fit(*data)  # fmt: skip
    assert [row["partial_fit_calls"] for row in search.model_history_[0]] == [2, 3]
    assert len(search.cv_results_["params"]) == 4
    with pytest.raises(ValueError, match="distribution, which has no grid"):
        IncrementalSearchCV(SGDClassifier(), SPACE, "grid").fit(*data)


def test_wrong_parameters_are_named():
    def plan(**options):
        IncrementalSearchCV(SGDClassifier(), SPACE, **options).metadata  # noqa: B018

    with pytest.raises(ValueError, match=r"must be an integer of at least 1 or 'grid'\. Got 'all'"):
        plan(n_initial_parameters="all")
    with pytest.raises(ValueError, match="'fits_per_score' parameter of IncrementalSearchCV"):
        plan(fits_per_score=0)
    with pytest.raises(ValueError, match="'max_iter' parameter of IncrementalSearchCV"):
        plan(max_iter=True)


def test_every_model_gets_all_calls(data):
    search = IncrementalSearchCV(SGDClassifier(), SPACE, 3, max_iter=4, client=None)
    assert search.fit(*data).cv_results_["partial_fit_calls"].tolist() == [4, 4, 4]
    assert len(search.history_) == 12  # a score after each call


def test_the_number_of_models_decays(data):
    space = {"slope": uniform(0, 1)}
    search = InverseDecaySearchCV(Counter(), space, 12, max_iter=9, random_state=0, client=None)
    search.fit(*data)
    (bracket,) = search.metadata["brackets"]
    assert bracket["decisions"] == [1, 2, 3]
    assert search.metadata == search.metadata_
    assert search.best_params_["slope"] == max(search.cv_results_["param_slope"])
    flat = InverseDecaySearchCV(Counter(), space, 4, max_iter=6, decay_rate=0, client=None)
    assert flat.fit(*data).metadata_["partial_fit_calls"] == 24
    with pytest.raises(ValueError, match="'decay_rate' parameter of InverseDecaySearchCV"):
        InverseDecaySearchCV(Counter(), space, decay_rate=-1, client=None).fit(*data)


def test_arguments_of_dask_ml_are_answered(data):
    space = {"slope": uniform(0, 1)}
    search = IncrementalSearchCV(Counter(), space, 2, 1.0, max_iter=2, client=None)
    with pytest.warns(FutureWarning, match="Use InverseDecaySearchCV"):
        search.fit(*data)
    search = IncrementalSearchCV(Counter(), space, 2, max_iter=4, scores_per_fit=2, client=None)
    with pytest.warns(UserWarning, match="deprecated since Dask-ML v1.4.0"):
        search.fit(*data)
    assert {row["partial_fit_calls"] for row in search.history_} == {2, 4}
    search.set_params(fits_per_score=3)
    with pytest.raises(ValueError, match="Specify fits_per_score, not scores_per_fit"):
        search.fit(*data)
