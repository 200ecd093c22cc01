"""The regressor: weights of examples, and skorch's defaults."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import skorch
import torch
from sklearn.base import is_regressor
from torch import nn

from accelerando import NeuralNetRegressor
from tests.nets import parameters_of, regressor


def test_every_parameter_is_spelled_out_and_given_by_name():
    parameters = inspect.signature(NeuralNetRegressor).parameters
    theirs = set(inspect.signature(skorch.NeuralNet).parameters)
    assert theirs | {"client", "sync", "policies"} <= set(parameters)
    assert "classes" not in parameters
    by_position = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_position == ["module"]


def test_defaults_are_skorchs():
    net = NeuralNetRegressor(nn.Linear)
    assert net.criterion is skorch.NeuralNetRegressor(nn.Linear).criterion is nn.MSELoss
    assert not net.train_split.stratified


def test_it_is_a_regressor(line):
    net = regressor(max_epochs=20).fit(*line)
    assert is_regressor(net)
    assert net.score(*line) > 0.9


def test_weights_of_examples(line):
    X, y = line
    weighted = regressor(batch_size=-1).fit(X, y, sample_weight=np.r_[np.zeros(60), np.ones(60)])
    fewer = regressor(batch_size=-1).fit(X[60:], y[60:])
    assert torch.allclose(parameters_of(weighted), parameters_of(fewer), atol=1e-6)
    with pytest.raises(TypeError):
        regressor().fit(X, y, class_weight="balanced")
