"""Conversions of y, one by one; ``tests/contracts/test_inputs.py`` has the table of inputs."""

from __future__ import annotations

import numpy as np
import pytest
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import nn

from accelerando import NeuralNetClassifier
from tests.nets import classifier, regressor

X = np.random.default_rng(0).random((40, 3)).astype("float32")
NAMES = np.array(["a", "b"])[np.arange(40) % 2]


def net_with(outputs=2, **params):
    return NeuralNetClassifier(nn.Linear(3, outputs), **{"max_epochs": 1, "verbose": 0, **params})


def test_numbers_of_outputs_are_not_encoded():
    y = np.array([1, 4] * 20)
    net = net_with(5).fit(X, y)
    assert net.predict_proba(X).shape == (40, 5)
    assert net._recipe_.labels is None


def test_later_calls_know_the_classes_of_the_first():
    net = net_with().partial_fit(X, NAMES)
    net.partial_fit(X[:10], np.full(10, "b"))
    assert list(net.classes_) == ["a", "b"]
    with pytest.raises(ValueError, match=r"y holds .*'z', which is none of the classes"):
        net.partial_fit(X[:10], np.full(10, "z"))


def test_the_order_of_given_classes_is_that_of_outputs():
    net = net_with(classes=["b", "a"]).fit(X, NAMES)
    assert list(net.classes_) == ["b", "a"]
    assert net.predict(X).tolist() == net.classes_[net.predict_proba(X).argmax(1)].tolist()


def test_validation_rows_of_the_user_are_converted():
    valid = predefined_split(Dataset(X.astype("float64"), NAMES))
    net = net_with(train_split=valid).fit(X.astype("float64"), NAMES)
    assert net.history[-1]["valid_acc"] == pytest.approx(net.score(X, NAMES))


def test_validation_rows_of_one_value_are_converted():
    y = X @ [1.0, 2.0, 3.0]
    net = regressor(train_split=predefined_split(Dataset(X, y)), max_epochs=2).fit(X, y)
    assert net.history[-1]["valid_loss"] == pytest.approx(np.mean((net.predict(X) - y) ** 2))


def test_weights_of_named_classes():
    net = net_with().fit(X, NAMES, class_weight={"a": 1.0, "b": 3.0})
    assert list(net.classes_) == ["a", "b"]


@pytest.mark.parametrize(
    ("net", "y", "message"),
    [
        (classifier(nn.Linear(3, 2)), np.linspace(0, 1, 40), "Unknown label type: continuous"),
        (regressor(), np.where(np.arange(40) == 3, np.inf, 1.0), "y contains NaN or infinity"),
        (regressor(), np.ones(40, complex), "Complex data not supported: y"),
        (regressor(), np.ones((40, 2)), r"y has shape \(40, 2\), and Linear has 1 output per row"),
        (regressor(), NAMES, "y has the type <U1"),
    ],
)
def test_targets_that_cannot_be_learned(net, y, message):
    with pytest.raises(ValueError, match=message):
        net.fit(X, y)
