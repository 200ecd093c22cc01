"""Nets in a search: skorch's, which have no random_state, and ours, whose policies are searched."""

import numpy as np
import pytest
import torch
from scipy.stats import loguniform
from skorch import NeuralNetClassifier
from torch import nn

from accelerando.batch_size import GeoDamp
from accelerando.search import HyperbandSearchCV
from tests.nets import classifier


class Net(nn.Module):
    def __init__(self, hidden=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    def forward(self, X):
        return self.layers(X)


@pytest.fixture
def floats(data):
    return data[0].astype(np.float32), data[1].astype(np.int64)


def search(client, **options):
    net = NeuralNetClassifier(
        Net,
        criterion=nn.CrossEntropyLoss,
        max_epochs=1,
        train_split=None,
        verbose=0,
        iterator_train__shuffle=True,
    )
    space = {"lr": loguniform(1e-3, 1), "module__hidden": [4, 8], "batch_size": [32, 64]}
    return HyperbandSearchCV(net, space, max_iter=9, random_state=0, client=client, **options)


def test_the_same_models_here_and_on_workers(floats, client):
    here = search(None).fit(*floats)
    there = search(client).fit(*floats)
    np.testing.assert_array_equal(here.cv_results_["test_score"], there.cv_results_["test_score"])
    assert here.best_score_ > 0.5
    assert here.predict_proba(floats[0]).shape == (600, 3)
    for a, b in zip(
        here.best_estimator_.module_.parameters(),
        there.best_estimator_.module_.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_the_global_generator_of_torch_is_left_alone(floats):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    search(None, max_calls=5).fit(*floats)
    torch.testing.assert_close(torch.rand(1), expected, rtol=0, atol=0)


def searched(digits, client):
    net = classifier(max_epochs=1, train_split=None, batch_size=GeoDamp, batch_size__initial=16)
    space = {"lr": loguniform(1e-3, 1), "batch_size__delay": [1, 2], "module__hidden": [8, 32]}
    return HyperbandSearchCV(net, space, max_iter=9, random_state=0, client=client).fit(*digits)


def test_learning_rate_policy_and_module_are_searched_together(digits):
    search = searched(digits, client=None)
    assert search.best_score_ > 0.8
    assert len(search.best_estimator_.history) == search.n_iter_  # one epoch per call
    assert set(search.best_params_) == {"lr", "batch_size__delay", "module__hidden"}
    assert search.predict(digits[0]).shape == (600,)
    params = search.best_estimator_.get_params()
    assert {name: params[name] for name in search.best_params_} == search.best_params_


@pytest.mark.timeout(240)
def test_our_nets_give_the_same_result_on_workers(digits, client):
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
