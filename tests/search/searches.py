"""Searches that tests share."""

from scipy.stats import loguniform, uniform
from sklearn.linear_model import SGDClassifier

from accelerando.search import HyperbandSearchCV

from .estimators import Counter

SPACE = {"alpha": loguniform(1e-5, 1.0), "penalty": ["l1", "l2"]}


def hyperband(estimator=None, parameters=None, **options):
    options = {"max_iter": 9, "random_state": 0, "client": None, **options}
    return HyperbandSearchCV(estimator or SGDClassifier(), parameters or SPACE, **options)


def counters(**options):
    return hyperband(Counter(), {"slope": uniform(0, 1)}, **options)
