"""scikit-learn's checks of estimators hold, except those that are listed with a reason.

``tests/contracts/test_search_contract.py`` has those of the searches.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from accelerando import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor


class Layers(nn.Module):
    """In double precision, because the checks compare numbers to seven digits."""

    def __init__(self, outputs=1):
        super().__init__()
        self.first = nn.LazyLinear(16, dtype=torch.float64)
        self.last = nn.Linear(16, outputs, dtype=torch.float64)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class Sized:
    """Gives the module as many outputs as `y` needs, which the checks do not tell."""

    def fit(self, X, y=None, **fit_params):
        self.outputs_ = self.outputs_of(np.asarray(y))
        return super().fit(X, y, **fit_params)

    def partial_fit(self, X, y=None, classes=None, **fit_params):
        if not self.initialized_:
            self.outputs_ = self.outputs_of(np.asarray(y if classes is None else classes))
        return super().partial_fit(X, y, classes=classes, **fit_params)

    def initialize_module(self):
        self.module_ = Layers(getattr(self, "outputs_", 2))
        return self


class Classifier(Sized, NeuralNetClassifier):
    def outputs_of(self, y):
        return max(2, len(np.unique(y)))


class Regressor(Sized, NeuralNetRegressor):
    def outputs_of(self, y):
        return 1 if y.ndim < 2 else y.shape[1]


ALWAYS = {
    "check_no_attributes_set_in_init": "skorch's constructor sets history_, initialized_ and "
    "virtual_params_, which code written for skorch reads",
    "check_do_not_raise_errors_in_init_or_set_params": "skorch's get_params lists the callbacks, "
    "and fails if callbacks is a number",
    "check_estimators_nan_inf": "a module may know what nan means; training stops with a "
    "NotFiniteError that names the rows if the loss is not a number",
}
PROBABILITIES = "skorch's regressor has predict_proba, which code written for skorch calls"
FAIL = {
    Classifier: {},
    Regressor: {
        "check_regressors_no_decision_function": PROBABILITIES,
        "check_estimator_sparse_array": PROBABILITIES + "; the check takes it for a classifier",
        "check_estimator_sparse_matrix": PROBABILITIES + "; the check takes it for a classifier",
    },
    NeuralNetBinaryClassifier: {
        "check_supervised_y_2d": "as skorch's, it refuses a y that is not 1-dimensional",
    },
}
SKIPPED = {"check_array_api_input"}  # runs with SCIPY_ARRAY_API=1 only


@pytest.mark.parametrize("kind", FAIL)
def test_scikit_learns_checks_hold(kind):
    net = kind(
        Layers,
        optimizer=torch.optim.Adam,
        lr=0.1,
        max_epochs=40,
        batch_size=-1,  # so that a weight of 2 is the same as a row that is there twice
        train_split=None,
        random_state=0,
        verbose=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks pass columns as y, for example
        results = check_estimator(net, on_fail=None, on_skip=None)
    assert {one["check_name"] for one in results if one["status"] == "skipped"} == SKIPPED
    failed = {one["check_name"]: one for one in results if one["status"] == "failed"}
    expected = {**ALWAYS, **FAIL[kind]}
    for name in failed.keys() - expected.keys():
        raise failed[name]["exception"]
    assert failed.keys() == expected.keys()
    assert len(results) - len(failed) >= 45
