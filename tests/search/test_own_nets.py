"""A search over our own nets: policies are parameters like any other."""

import numpy as np
import pytest
import torch
from scipy.stats import loguniform

from accelerando.batch_size import GeoDamp
from accelerando.search import HyperbandSearchCV
from tests.nets import classifier


def searched(digits, client):
    net = classifier(max_epochs=1, train_split=None, batch_size=GeoDamp, batch_size__initial=16)
    space = {"lr": loguniform(1e-3, 1), "batch_size__delay": [1, 2], "module__hidden": [8, 32]}
    return HyperbandSearchCV(net, space, max_iter=9, random_state=0, client=client).fit(*digits)


def test_learning_rate_policy_and_module_are_searched_together(digits):
    search = searched(digits, client=None)
    assert search.best_score_ > 0.8
    assert search.best_estimator_.position_.epoch == search.n_iter_
    assert set(search.best_params_) == {"lr", "batch_size__delay", "module__hidden"}
    assert search.predict(digits[0]).shape == (600,)
    policy = search.best_estimator_._controller().policies[0]
    assert policy.delay == search.best_params_["batch_size__delay"]


@pytest.mark.timeout(240)
def test_the_same_on_workers(digits, client):
    here, there = searched(digits, client=None), searched(digits, client)
    np.testing.assert_allclose(
        here.cv_results_["test_score"], there.cv_results_["test_score"], atol=0.02
    )
    assert here.best_params_ == there.best_params_
    assert all(
        torch.allclose(a, b, atol=1e-4)
        for a, b in zip(
            here.best_estimator_.module_.parameters(),
            there.best_estimator_.module_.parameters(),
            strict=True,
        )
    )
