"""A search as a study of Optuna: states, values and distributions of its trials."""

import sys

import numpy as np
import optuna
import pytest
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from accelerando.search._optuna import to_study

NAN = float("nan")


@pytest.fixture(autouse=True)
def _quiet():
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(level)


class Search(BaseEstimator):
    """What is left of a fitted search."""

    def __init__(self, **fitted):
        vars(self).update(fitted)

    def fit(self, X, y=None): ...


def search_of(params, calls=None, scores=None, **columns):
    """What a fitted search leaves, with one row in its history for each call."""
    count = len(params)
    calls = calls or [3] * count
    scores = scores or [0.5] * count
    return Search(
        history_=[],
        cv_results_={
            "params": params,
            "partial_fit_calls": calls,
            "test_score": scores,
            "model_id": np.arange(count) + 10,
            **columns,
        },
        model_history_={
            i + 10: [{"partial_fit_calls": c, "score": scores[i]} for c in range(1, calls[i] + 1)]
            for i in range(count)
        },
    )


def test_models_are_trials_and_scores_intermediate_values():
    params = [{"lr": 0.5}, {"lr": 0.25}, {"lr": 0.125}]
    search = search_of(params, [3, 1, 2], [0.9, 0.95, NAN], bracket=np.array([2, 1, 0]))
    first, second, third = to_study(search, "mine", None).trials
    assert [t.state.name for t in (first, second, third)] == ["COMPLETE", "PRUNED", "FAIL"]
    assert first.value == 0.9
    assert first.intermediate_values == {1: 0.9, 2: 0.9, 3: 0.9}
    assert third.intermediate_values == {}
    assert first.user_attrs == {"model_id": 10, "bracket": 2}


def test_the_best_trial_is_the_model_with_the_highest_score():
    study = to_study(search_of([{"a": 1}, {"a": 2}], scores=[-2.0, -1.0]), "mine", None)
    assert study.study_name == "mine"
    assert study.best_params == {"a": 2}


@pytest.mark.parametrize(
    ("values", "kind", "limits"),
    [
        ([1, np.int64(9)], "IntDistribution", {"low": 1, "high": 9, "log": False}),
        ([0.1, np.float32(0.5)], "FloatDistribution", {"low": 0.1, "high": 0.5, "log": False}),
        ([1e-5, 1.0], "FloatDistribution", {"low": 1e-5, "high": 1.0, "log": True}),
        ([-1.0, 200.0], "FloatDistribution", {"low": -1.0, "high": 200.0, "log": False}),
        ([1, 2.5], "FloatDistribution", {"low": 1.0, "high": 2.5}),
        (["sgd", None, True], "CategoricalDistribution", {"choices": ("sgd", None, True)}),
        ([0.5, float("inf")], "CategoricalDistribution", {}),
        ([(1, 2), (3,)], "CategoricalDistribution", {"choices": ("(1, 2)", "(3,)")}),
    ],
)
def test_what_was_drawn_decides_the_distribution(values, kind, limits):
    study = to_study(search_of([{"x": value} for value in values]), None, None)
    found = study.trials[0].distributions["x"]
    assert type(found).__name__ == kind
    for name, value in limits.items():
        assert getattr(found, name) == (value if name == "choices" else pytest.approx(value))
    for trial, value in zip(study.trials, values, strict=True):
        plain = isinstance(value, tuple)
        assert trial.params["x"] == (repr(value) if plain else pytest.approx(value))


def test_a_parameter_that_only_some_models_have():
    study = to_study(search_of([{"a": 1}, {"a": 2, "b": "x"}]), None, None)
    assert [trial.params for trial in study.trials] == [{"a": 1}, {"a": 2, "b": "x"}]


def test_a_study_that_exists_is_named(tmp_path):
    storage = f"sqlite:///{tmp_path}/studies.db"
    to_study(search_of([{"a": 1}]), "mine", storage)
    with pytest.raises(ValueError, match="already has a study with study_name='mine'"):
        to_study(search_of([{"a": 1}]), "mine", storage)


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"pip install 'accelerando\[tpe\]'"):
        to_study(search_of([{"a": 1}]), None, None)


def test_a_search_that_was_not_fitted_is_refused():
    with pytest.raises(NotFittedError):
        to_study(Search(), None, None)
