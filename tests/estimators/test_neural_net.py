"""The general estimator: skorch's parameters by position, and any loss."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import skorch
import torch
from torch import nn

from accelerando import NeuralNet
from accelerando.batch_size import GeoDamp


def make(**params):
    settings = {"module__in_features": 3, "module__out_features": 1, "train_split": None,
                "random_state": 0, "verbose": 0}  # fmt: skip
    return NeuralNet(nn.Linear, nn.MSELoss, **{**settings, **params})


def test_every_parameter_is_spelled_out():
    signature = inspect.signature(NeuralNet)
    theirs = [p for p in inspect.signature(skorch.NeuralNet).parameters if p != "kwargs"]
    ours = list(signature.parameters)
    assert set(theirs) <= set(ours)
    assert {"max_batch_size", "client", "sync", "policies", "checkpoint"} <= set(ours)


def test_skorchs_parameters_go_by_position():
    theirs = inspect.signature(skorch.NeuralNet).parameters.values()
    ours = inspect.signature(NeuralNet).parameters
    positional = [p.name for p in theirs if p.kind is p.POSITIONAL_OR_KEYWORD]
    found = [p.name for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert found == positional
    net = NeuralNet(nn.Linear, nn.MSELoss, torch.optim.Adam, 0.5, 7, 16)
    assert (net.optimizer, net.lr, net.max_epochs, net.batch_size) == (torch.optim.Adam, 0.5, 7, 16)


@pytest.mark.parametrize("name", ["max_epochs", "batch_size", "device", "verbose"])
def test_defaults_are_skorchs(name):
    theirs = inspect.signature(skorch.NeuralNet).parameters[name].default
    assert inspect.signature(NeuralNet).parameters[name].default == theirs


def test_the_default_learning_rate_of_sgd_is_skorchs():
    net = make().set_params(lr="auto", optimizer=torch.optim.SGD).initialize()
    default = inspect.signature(skorch.NeuralNet).parameters["lr"].default
    assert net.optimizer_.param_groups[0]["lr"] == default


def test_it_trains_any_module_with_any_loss(line):
    net = make(lr=0.05, max_epochs=10, batch_size=GeoDamp(8, 3, 2)).fit(*line)
    assert net.module_.weight.flatten().tolist() == pytest.approx([1.0, -2.0, 0.5], abs=0.1)
    assert net.predict(line[0]).shape == (120, 1)


def test_weights_reach_the_loss(line):
    X, y = line
    weighted = make(batch_size=-1).fit(X, y, sample_weight=np.r_[np.zeros(60), np.ones(60)])
    fewer = make(batch_size=-1).fit(X[60:], y[60:])
    assert torch.allclose(weighted.module_.weight, fewer.module_.weight, atol=1e-6)


def test_it_is_skorchs_net():
    assert isinstance(make(), skorch.NeuralNet)
    assert not isinstance(make(), skorch.NeuralNetRegressor)
