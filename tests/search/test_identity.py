"""Identity of a search: everything that changes its results is in it, and nothing else."""

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from accelerando.search._identity import differences, search_identity

from .searches import SPACE, hyperband

X, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2


class Odd:
    """Not built like an estimator of scikit-learn: its copies keep what it has learned."""

    def __init__(self, learned=0):
        self.learned = learned

    def get_params(self, deep=True):
        return {"alpha": 1.0, "penalty": "l2"}

    def partial_fit(self, X, y):
        return self


def identity(search=None, X=X, y=y, groups=None, splits=None, **fit_params):
    search = search or hyperband()
    return search_identity(search, X, y, groups, fit_params, search._brackets(), splits)


def scaled(rows):
    return hyperband(make_pipeline(StandardScaler().fit(rows), SGDClassifier()))


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (lambda: identity(X=X + 1), "X"),
        (lambda: identity(y=1 - y), "y"),
        (lambda: identity(groups=y), "groups"),
        (lambda: identity(splits=[(y, y)]), "splits of cv"),
        (lambda: identity(sample_weight=X[:, 0]), "fit parameter 'sample_weight'"),
        (lambda: identity(hyperband(SGDClassifier(eta0=2))), "estimator parameter 'eta0'"),
        (lambda: identity(hyperband(parameters={**SPACE, "penalty": ["l1"]})), "['penalty']"),
        (lambda: identity(hyperband(scoring="f1")), "scoring"),
        (lambda: identity(hyperband(test_size=0.5)), "test_size"),
        (lambda: identity(hyperband(chunk_size=3)), "chunk_size"),
        (lambda: identity(hyperband(validation_data=(X, y))), "validation_data"),
        (lambda: identity(hyperband(patience=3)), "patience"),
        (lambda: identity(hyperband(tol=0.5)), "tol"),
        (lambda: identity(hyperband(random_state=1)), "random_state"),
        (lambda: identity(hyperband(max_iter=27)), "plan"),
        (lambda: identity(hyperband(sampler="tpe")), "sampler"),
        (lambda: identity(hyperband(error_score=0)), "error_score"),
    ],
)
def test_what_changes_results_is_a_difference(other, name):
    assert any(name in phrase for phrase in differences(identity(), other()))


@pytest.mark.parametrize(
    "options", [{"max_calls": 5}, {"max_seconds": 9}, {"verbose": True}, {"n_jobs": 2}]
)
def test_limits_and_appearance_are_none(options):
    assert identity(hyperband(**options)) == identity()


def test_what_an_earlier_step_has_learned_is_a_difference():
    (phrase,) = differences(identity(scaled(X)), identity(scaled(X * 2)))
    assert phrase.startswith("estimator parameter 'steps': ")


def test_what_copies_of_the_estimator_keep_is_a_difference():
    (phrase,) = differences(identity(hyperband(Odd())), identity(hyperband(Odd(learned=1))))
    assert phrase.startswith("attributes of the estimator: ")


def test_differences_are_named():
    assert differences({"a": "1"}, {"a": "1"}) == []
    assert differences({"a": "1", "b": "2"}, {"a": "3"}) == [
        "a: saved 1, now 3",
        "b: saved 2, now nothing",
    ]
