"""Conversions of y, one by one; ``tests/contracts/test_inputs.py`` has the table of inputs."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import nn

from accelerando import NeuralNet, NeuralNetClassifier
from tests.nets import classifier, parameters_of, regressor

X = np.random.default_rng(0).random((40, 3)).astype("float32")
NAMES = np.array(["a", "b"])[np.arange(40) % 2]


def net_with(outputs=2, module=None, **params):
    module = nn.Linear(3, outputs) if module is None else module
    return NeuralNetClassifier(module, **{"max_epochs": 1, "verbose": 0, **params})


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


# -- outputs beyond the classes, and types of labels -----------------------------------------------


def test_outputs_of_unknown_classes_are_not_predicted():
    module = nn.Linear(3, 4)
    net = net_with(module=module, train_split=None, lr=0.0).fit(X, NAMES)
    module.bias.data[3] = 50.0  # of which no class is known
    proba = net.predict_proba(X)
    assert proba.argmax(axis=1).tolist() == [3] * 40
    assert net.predict(X).tolist() == net.classes_[proba[:, :2].argmax(axis=1)].tolist()
    assert net.score(X, net.predict(X)) == 1.0


def test_one_class_is_predicted():
    assert set(net_with().fit(X, np.full(40, "a")).predict(X)) == {"a"}


@pytest.mark.parametrize("dtype", ["uint64", "uint32", "uint8", "int16", "float16", "longdouble"])
def test_types_of_labels(dtype):
    y = np.arange(40) % 2
    module = partial(nn.Linear, 3, 2)
    plain, net = (
        net_with(module=module, random_state=0).fit(X, labels) for labels in (y, y.astype(dtype))
    )
    assert torch.equal(parameters_of(net), parameters_of(plain))


# -- nets that are neither classifier nor regressor -----------------------------------------------


def generic(criterion, outputs=1, **params):
    module = {"module__in_features": 3, "module__out_features": outputs}
    settings = {"train_split": None, "random_state": 0, "verbose": 0, "lr": 0.1, **params}
    return NeuralNet(nn.Linear, criterion=criterion, **module, **settings)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("loss", [nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_one_value_per_row_is_a_column(loss, dtype):
    y = (9 * X @ [1.0, 2.0, 3.0]).astype(dtype)
    net = generic(loss).fit(X, y)
    column = generic(loss).fit(X, y[:, None].astype("float32"))
    assert torch.equal(parameters_of(net), parameters_of(column))
    assert net.predict(X).shape == (40,)
    assert column.predict(X).shape == (40, 1)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "uint64"])
def test_integers_are_classes_for_cross_entropy(dtype):
    y = np.arange(40) % 2
    net, plain = (generic(nn.CrossEntropyLoss, 2).fit(X, labels) for labels in (y.astype(dtype), y))
    assert torch.equal(parameters_of(net), parameters_of(plain))


class Cube(nn.MSELoss):
    def forward(self, input, target):
        return (input[:, 0] - target).abs().pow(3).mean()


def test_an_own_loss_gets_targets_as_they_are():
    y = X @ [1.0, 2.0, 3.0]
    assert generic(Cube, lr=1e-3).fit(X, y).predict(X).shape == (40, 1)


def test_targets_beyond_the_largest_number():
    with pytest.raises(ValueError, match=r"y holds numbers beyond 3\.4e\+38, .* of float32.*Scale"):
        regressor().fit(X, np.full(40, 1e200))
    with pytest.raises(ValueError, match=r"X holds numbers beyond 3\.4e\+38"):
        regressor().fit(X.astype("float64") * 1e200, np.ones(40))
