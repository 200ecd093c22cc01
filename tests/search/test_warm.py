"""Estimators without partial_fit, pipelines, and objects that are only like estimators."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.svm import SVC

from accelerando.search import HyperbandSearchCV, WarmStart

from .searches import SPACE, hyperband


@pytest.mark.parametrize(
    ("estimator", "grown", "parameter"),
    [
        (RandomForestClassifier(), "n_estimators", {"estimator__max_depth": range(1, 30)}),
        (HistGradientBoostingClassifier(), "max_iter", {"estimator__max_depth": range(1, 30)}),
        (GradientBoostingRegressor(), "n_estimators", {"estimator__max_depth": range(1, 30)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_call_adds_trees(estimator, grown, parameter, data):
    model = WarmStart(estimator, step=2)
    parameter = {name: list(values) for name, values in parameter.items()}
    search = HyperbandSearchCV(model, parameter, max_iter=3, random_state=0, client=None).fit(*data)
    best = search.best_estimator_.estimator_
    assert getattr(best, grown) == 2 * search.n_iter_
    assert is_classifier(search) is is_classifier(estimator)
    assert is_regressor(search) is is_regressor(estimator)
    assert search.predict(data[0]).shape == (600,)
    assert search.best_score_ == pytest.approx(max(search.cv_results_["test_score"]))
    assert not hasattr(estimator, "n_features_in_")  # the user's estimator is not touched


def test_the_model_before_is_passed_to_estimators_that_take_it():
    class Boosted(BaseEstimator):
        def __init__(self, n_estimators=100):
            self.n_estimators = n_estimators

        def fit(self, X, y, xgb_model=None):
            self.trees_ = self.n_estimators + (0 if xgb_model is None else xgb_model.trees_)
            return self

        def score(self, X, y):
            return self.trees_

    model = WarmStart(Boosted(), step=3)
    for calls in (1, 2, 3):
        assert model.partial_fit([[1]], [1]).score([[1]], [1]) == 3 * calls
    assert model.fit([[1]], [1]).score([[1]], [1]) == 3


def test_every_call_of_a_boosted_model_has_other_random_numbers():
    class Boosted(BaseEstimator):
        def __init__(self, n_estimators=100, random_state=None):
            self.n_estimators = n_estimators
            self.random_state = random_state

        def fit(self, X, y, init_model=None):
            self.seeds_ = [*(init_model.seeds_ if init_model else []), self.random_state]
            return self

    def seeds(seed):
        model = WarmStart(Boosted(random_state=seed))
        for _ in range(3):
            model.partial_fit([[1]], [1])
        return model.estimator_.seeds_

    assert len({*seeds(0), *seeds(1)}) == 6
    assert seeds(0)[0] == 0
    assert seeds(0) == seeds(0)
    assert seeds(None) == [None] * 3


def test_what_cannot_continue_is_refused(data):
    with pytest.raises(TypeError, match="but SVC has neither the parameter warm_start nor"):
        WarmStart(SVC()).partial_fit(*data)
    with pytest.raises(ValueError, match=r"'parameter' parameter of WarmStart .* Got 'trees'"):
        WarmStart(RandomForestClassifier(), parameter="trees").partial_fit(*data)
    with pytest.raises(ValueError, match="'step' parameter of WarmStart"):
        WarmStart(LogisticRegression(), step=0).partial_fit(*data)
    with pytest.raises(NotFittedError):
        WarmStart(RandomForestClassifier()).predict(data[0])


def in_pipeline(*steps, **options):
    space = {f"sgdclassifier__{name}": values for name, values in SPACE.items()}
    return hyperband(make_pipeline(*steps, SGDClassifier()), space, **options)


def test_pipelines_with_stateless_and_fitted_steps(data, client):
    X = data[0] * 100 + 7
    scaler = StandardScaler().fit(X)
    for where in (None, client):
        search = in_pipeline(Normalizer(), client=where).fit(*data)
        assert search.predict(data[0]).shape == (600,)
        search = in_pipeline(scaler, "passthrough", client=where).fit(X, data[1])
        assert search.score(X, data[1]) > 0.5
        np.testing.assert_array_equal(search.best_estimator_[0].mean_, scaler.mean_)
    assert list(search.classes_) == [0, 1, 2]


def test_steps_that_would_have_to_be_trained_are_refused(data):
    with pytest.raises(ValueError, match=r"step 'standardscaler' .* must be stateless or fitted"):
        in_pipeline(StandardScaler()).fit(*data)
    fitted = make_pipeline(StandardScaler().fit(data[0]), SGDClassifier())
    with pytest.raises(ValueError, match="'standardscaler' is already fitted"):
        hyperband(fitted, {"standardscaler__with_mean": [True, False]}).fit(*data)
    with pytest.raises(TypeError, match="must have partial_fit, but SVC"):
        hyperband(make_pipeline(Normalizer(), SVC()), {"svc__C": [1.0]}).fit(*data)


class Duck:
    """Only what the docstring asks for; its copy cannot be made from its parameters."""

    def __init__(self, **options):
        self.options = {"rate": 0.0, **options}
        self.calls = 0

    def get_params(self, deep=True):
        return dict(self.options)

    def set_params(self, **params):
        self.options |= params
        return self

    def partial_fit(self, X, y):
        self.calls += 1

    def score(self, X, y):
        return self.options["rate"] * self.calls


def test_any_object_with_the_four_methods(data, client):
    rates = [0.1 * i for i in range(20)]
    for where in (None, client):
        search = hyperband(Duck(), {"rate": rates}, client=where).fit(*data)
        assert search.best_score_ == pytest.approx(9 * search.best_params_["rate"])
        assert search.score(*data) == search.best_score_
