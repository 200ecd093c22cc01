"""What is wrong with components, names and data is said in a sentence before training."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelerando import NeuralNetClassifier
from accelerando.estimators._explain import (
    check_callback_names,
    check_device,
    check_names,
    explain_components,
    look_at_inputs,
)
from accelerando.exceptions import UnsupportedError
from tests.nets import classifier

ERROR = RuntimeError("PyTorch's own words")


class Odd(nn.Module):
    def __init__(self, inputs):
        super().__init__()


@pytest.mark.parametrize(
    ("params", "error", "named"),
    [
        ({"module": 3}, ERROR, "'module' parameter .* Got 3"),
        ({"criterion": "auto"}, ERROR, None),
        ({"criterion": "mse"}, ERROR, "'criterion' parameter .* Got 'mse'"),
        ({"criterion": 0.5}, ERROR, "'criterion' parameter .* Got 0.5"),
        ({"optimizer": "sgd"}, ERROR, "'optimizer' parameter .* Got 'sgd'"),
        ({"module": Odd}, TypeError("missing 1 argument"), r"module=Odd needs more module__x"),
        ({"module": Odd, "module__inputs": 2}, TypeError("something else"), None),
        ({}, ValueError("optimizer got an empty parameter list"), "has no parameters"),
        ({"optimizer": torch.optim.SGD}, TypeError("unexpected keyword argument 'lr'"), "no learn"),
        ({"callbacks": [3]}, ERROR, "'callbacks' parameter .* Got 3"),
    ],
)
def test_components_that_cannot_be_made(params, error, named):
    net = NeuralNetClassifier(**{"module": nn.ReLU, "criterion": nn.MSELoss, **params})
    if named is None:  # nothing is known about it: the error stays what it is
        explain_components(net, error)
        return
    with pytest.raises((TypeError, ValueError), match=named):
        explain_components(net, error)


def test_an_instance_of_an_optimizer_is_no_class():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises((TypeError, ValueError), match="not an instance"):
        explain_components(NeuralNetClassifier(nn.ReLU, optimizer=optimizer), ERROR)


@pytest.mark.parametrize("device", ["cuda:93", "nowhere", "meta"])
def test_a_device_that_cannot_compute(device):
    with pytest.raises((TypeError, ValueError), match=f"'device' parameter .* Got '{device}'"):
        check_device(classifier(device=device))


def test_names_are_compared_with_those_that_exist():
    with pytest.raises(ValueError, match=r"Linear has no parameter 'in_feature'.*'in_features'"):
        check_names("module", nn.Linear, {"in_feature": 3})
    with pytest.raises(UnsupportedError, match=r"iterator_train__batch_size=None"):
        check_names("iterator_train", DataLoader, {"batch_size": None})
    check_names("module", nn.Linear, {"in_features": 3})
    check_names("module", lambda **anything: None, {"whatever": 3})
    net = classifier(callbacks__prnt_log=None)
    with pytest.raises(ValueError, match=r"no callback 'prnt_log'.*'print_log'"):
        check_callback_names(net, ["epoch_timer", "print_log"])


@pytest.mark.parametrize(
    ("X", "error", "named"),
    [
        (DataLoader(TensorDataset(torch.ones(3, 1))), TypeError, "X is a DataLoader"),
        (None, TypeError, "X must be an array"),
        ("rows.csv", TypeError, "X must be an array"),
        (iter([1]), TypeError, "Write an IterableDataset for a stream"),
        (np.array([["a"], ["b"]]), ValueError, "X has the type <U1"),
        (np.array([["2026-11-19"]], dtype="M8[D]"), ValueError, "a module computes with numbers"),
    ],
)
def test_data_that_cannot_be_trained_on(X, error, named):
    with pytest.raises(error, match=named):
        look_at_inputs(classifier().initialize(), X, np.zeros(2, dtype=int))
