"""Weights of examples and classes."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
import torch
from torch import nn

from accelerando._engine.micro_batch import mass
from accelerando.exceptions import UnsupportedError
from tests.nets import classifier, parameters_of, regressor


def test_a_weight_of_two_is_an_example_twice(line):
    X, y = line
    weights = np.r_[np.full(60, 2.0), np.ones(60)]
    weighted = regressor(batch_size=-1).fit(X, y, sample_weight=weights)
    doubled = regressor(batch_size=-1).fit(np.r_[X[:60], X], np.r_[y[:60], y])
    assert torch.allclose(parameters_of(weighted), parameters_of(doubled), atol=1e-6)


def test_a_weight_of_zero_is_an_example_left_out(line):
    X, y = line
    weights = np.r_[np.zeros(40), np.ones(80)]
    weighted = regressor(batch_size=-1).fit(X, y, sample_weight=weights)
    fewer = regressor(batch_size=-1).fit(X[40:], y[40:])
    assert torch.allclose(parameters_of(weighted), parameters_of(fewer), atol=1e-6)


def test_only_ratios_matter_and_equal_weights_change_nothing(line):
    plain = parameters_of(regressor().fit(*line))
    for scale in (1.0, 17.0):
        weighted = regressor().fit(*line, sample_weight=np.full(120, scale))
        assert torch.allclose(parameters_of(weighted), plain, atol=1e-6)


def test_weights_follow_their_rows_through_split_shuffle_and_micro_batches(digits):
    """Rows of one class weigh nothing: the net never learns that class."""
    X, y = digits
    net = classifier(max_epochs=15, batch_size=50, micro_batch_size=8)
    net.fit(X, y, sample_weight=(y != 3).astype(float))
    predicted = net.predict(X)
    assert (predicted == 3).mean() < 0.01
    assert (predicted == y)[y != 3].mean() > 0.85


def test_class_weight(digits):
    X, y = digits
    balanced = classifier(train_split=None).fit(X, y, class_weight="balanced")
    counts = np.bincount(y)
    by_hand = classifier(train_split=None).fit(X, y, sample_weight=600 / (10 * counts[y]))
    assert torch.equal(parameters_of(balanced), parameters_of(by_hand))
    both = classifier(train_split=None).fit(
        X, y, sample_weight=np.ones(600), class_weight=dict.fromkeys(range(10), 1.0)
    )
    plain = classifier(train_split=None).fit(X, y)
    assert torch.allclose(parameters_of(both), parameters_of(plain), atol=1e-6)


def test_partial_fit_takes_weights(line):
    X, y = line
    net = regressor(batch_size=-1).partial_fit(X, y, sample_weight=np.r_[np.zeros(60), np.ones(60)])
    fewer = regressor(batch_size=-1).fit(X[60:], y[60:])
    assert torch.allclose(parameters_of(net), parameters_of(fewer), atol=1e-6)


def test_several_outputs(line):
    X, y = line
    both = np.c_[y, -y].astype("float32")
    weights = np.linspace(0, 2, 120)
    whole = regressor(module__out_features=2, micro_batch_size=None)
    parts = regressor(module__out_features=2, micro_batch_size=5)
    assert torch.allclose(
        parameters_of(whole.fit(X, both, sample_weight=weights)),
        parameters_of(parts.fit(X, both, sample_weight=weights)),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(7), r"X has 120 examples, sample_weight has shape \(7,\)"),
        (np.full(120, -1.0), "finite and not negative"),
        (np.full(120, np.nan), "finite and not negative"),
        (np.zeros(120), "zero for every training example"),
    ],
)
def test_wrong_weights_say_so(line, weights, message):
    with pytest.raises(ValueError, match=message):
        regressor().fit(*line, sample_weight=weights)


def test_a_loss_without_reduction_says_so(line):
    class Own(nn.Module):
        def forward(self, y_pred, y):
            return (y_pred - y).square().mean()

    with pytest.raises(UnsupportedError, match="Own has no 'reduction' parameter"):
        regressor(criterion=Own).fit(*line, sample_weight=np.ones(120))


def test_metadata_routing(line):
    with sklearn.config_context(enable_metadata_routing=True):
        net = regressor(max_epochs=1).set_fit_request(sample_weight=True)
        net.fit(*line, sample_weight=np.ones(120))
    assert net.position_.epoch == 1


def test_mass_is_what_the_loss_divides_by():
    y = torch.tensor([0, 1, 1, 2, -100])
    weight = torch.tensor([1.0, 2.0, 5.0])
    assert mass(nn.MSELoss(), y, 5) == 5
    assert mass(nn.CrossEntropyLoss(), y, 5) == 4
    assert mass(nn.CrossEntropyLoss(weight=weight), y, 5) == 10
    assert mass(nn.NLLLoss(weight=weight, ignore_index=1), y[:4], 4) == 6
    assert mass(nn.CrossEntropyLoss(), torch.rand(5, 3), 5) == 5
