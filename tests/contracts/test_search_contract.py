"""Every search x every invariant: a new search adds one row."""

import inspect
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import loguniform, uniform
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import accelerando.search
from accelerando.search import (
    AsyncHalvingSearchCV,
    HyperbandSearchCV,
    IncrementalSearchCV,
    InverseDecaySearchCV,
    SuccessiveHalvingSearchCV,
)
from tests.search.estimators import Counter

SPACE = {"alpha": loguniform(1e-5, 1.0)}
# The tests' names show the settings, and those of a distribution its address in memory.
NAMEABLE = {"alpha": [10.0**power for power in range(-12, 1)]}
SEARCHES = {
    "hyperband": (HyperbandSearchCV, {"max_iter": 9}),
    "successive halving": (SuccessiveHalvingSearchCV, {"n_initial_parameters": 9, "max_iter": 9}),
    "asha": (AsyncHalvingSearchCV, {"n_initial_parameters": 12, "max_iter": 9}),
    "random": (IncrementalSearchCV, {"n_initial_parameters": 4, "max_iter": 5}),
    "inverse decay": (InverseDecaySearchCV, {"n_initial_parameters": 8, "max_iter": 5}),
}


def make(name, **options):
    cls, own = SEARCHES[name]
    space = options.pop("parameters", SPACE)
    return cls(SGDClassifier(), space, **{"random_state": 0, "client": None, **own, **options})


every_search = pytest.mark.parametrize("name", SEARCHES)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    return X, (X[:, 0] + 0.3 * rng.normal(size=200) > 0).astype(int)


def test_the_table_has_every_search():
    public = {n for n in dir(accelerando.search) if n.endswith("SearchCV")}
    assert public == {cls.__name__ for cls, _ in SEARCHES.values()}


@every_search
def test_init_only_stores(name):
    cls, _ = SEARCHES[name]
    parameters = list(inspect.signature(cls).parameters)
    values = {parameter: object() for parameter in parameters}
    search = cls(**values)
    assert vars(search) == values


@every_search
def test_attributes_agree_with_each_other(name, data):
    search = make(name).fit(*data)
    results = search.cv_results_
    best = search.best_index_
    assert results["rank_test_score"][best] == 1
    assert results["test_score"][best] == search.best_score_ == np.nanmax(results["test_score"])
    assert results["params"][best] == search.best_params_
    assert search.best_estimator_.alpha == search.best_params_["alpha"]
    assert {row["model_id"] for row in search.history_} == set(results["model_id"])
    assert sum(results["partial_fit_calls"]) == search.metadata_["partial_fit_calls"]
    assert len(results["model_id"]) == search.metadata_["n_models"] == search.metadata["n_models"]
    seconds = [row["elapsed_wall_time"] for row in search.history_]
    assert seconds == sorted(seconds)
    assert search.stop_reason_ == "finished"
    for model, calls in zip(results["model_id"], results["partial_fit_calls"], strict=True):
        rows = search.model_history_[model]
        assert [row["partial_fit_calls"] for row in rows] == sorted(
            {row["partial_fit_calls"] for row in rows}
        )
        assert rows[-1]["partial_fit_calls"] == calls


@every_search
def test_the_plan_is_what_happens(name, data):
    search = make(name)
    plan = search.metadata
    assert search.metadata == plan
    done = search.fit(*data).metadata_
    if name == "asha":  # early promotions can only add calls
        assert done["partial_fit_calls"] >= plan["partial_fit_calls"]
    else:
        assert done == plan


@every_search
def test_the_same_seed_gives_the_same_result_with_either_priority(name, data):
    searches = [
        make(name, priority=priority, slice_seconds=seconds).fit(*data)
        for priority, seconds in [("score", 10), ("fifo", 10), ("score", 1e-9)]
    ]
    for search in searches[1:]:
        np.testing.assert_array_equal(
            search.cv_results_["test_score"], searches[0].cv_results_["test_score"]
        )
        assert search.best_params_ == searches[0].best_params_


@pytest.mark.parametrize("name", sorted(set(SEARCHES) - {"inverse decay"}))
def test_results_equal_those_of_version_0_1(name):
    """Parameters, scores and decisions, recorded with the code of version 0.1.0."""
    path = Path(__file__).parents[1] / "search" / "data" / "reference.json"
    expected = json.loads(path.read_text())[name]
    cls, options = SEARCHES[name]
    space = {"slope": uniform(0, 1), "offset": uniform(0, 1)}
    search = cls(Counter(), space, random_state=0, client=None, **options)
    search.fit(np.zeros((600, 8)), np.zeros(600))
    results = search.cv_results_
    assert list(results["params"]) == expected["params"]
    assert results["test_score"].tolist() == expected["test_score"]
    assert results["partial_fit_calls"].tolist() == expected["partial_fit_calls"]
    assert [str(model) for model in results["model_id"]] == expected["model_id"]
    assert search.best_index_ == expected["best_index"]


@every_search
def test_every_limit_is_kept(name, data):
    search = make(name, max_calls=7).fit(*data)
    assert search.metadata_["partial_fit_calls"] <= 7
    assert search.stop_reason_ == "max_calls"
    search = make(name, max_seconds=1e-6).fit(*data)
    assert search.stop_reason_ == "max_seconds"
    assert search.best_score_ == search.cv_results_["test_score"].max()


@every_search
def test_a_fitted_search_can_be_pickled_and_cloned(name, data):
    search = make(name).fit(*data)
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(again.predict(data[0]), search.predict(data[0]))
    fresh = clone(search)
    assert not hasattr(fresh, "best_estimator_")
    assert fresh.get_params()["random_state"] == 0


@every_search
def test_checkpoints_change_nothing(name, data, tmp_path):
    plain = make(name).fit(*data)
    make(name, checkpoint=tmp_path, max_calls=10).fit(*data)
    resumed = make(name, checkpoint=tmp_path).fit(*data)
    np.testing.assert_array_equal(
        plain.cv_results_["test_score"], resumed.cv_results_["test_score"]
    )
    assert resumed.best_score_ == plain.best_score_


@every_search
def test_tpe_learns_or_says_that_it_cannot(name, data):
    search = make(name, sampler="tpe")
    if name == "hyperband":
        assert search.fit(*data).metadata_ == search.metadata
    else:
        with pytest.raises(ValueError, match="this search has only one"):
            search.fit(*data)


def smallest(name):
    """Return a search of few models, which is fitted by hundreds of checks."""
    few = {"n_initial_parameters": 3} if "n_initial_parameters" in SEARCHES[name][1] else {}
    return make(name, parameters=NAMEABLE, max_iter=3, error_score="raise", **few)


@parametrize_with_checks([smallest(name) for name in SEARCHES])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)
