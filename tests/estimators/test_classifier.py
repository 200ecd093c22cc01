"""The classifier: classes, weights of classes, and skorch's defaults."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import skorch
import torch
from sklearn.base import is_classifier
from torch import nn
from torch.utils.data import TensorDataset

from accelerando import NeuralNetClassifier
from tests.nets import Items, classifier, parameters_of


def test_every_parameter_is_spelled_out_and_given_by_name():
    parameters = inspect.signature(NeuralNetClassifier).parameters
    theirs = set(inspect.signature(skorch.NeuralNet).parameters)
    assert theirs | {"classes", "client", "sync", "policies"} <= set(parameters)
    by_position = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_position == ["module"]


def test_defaults_are_skorchs():
    net = NeuralNetClassifier(nn.Linear)
    theirs = skorch.NeuralNetClassifier(nn.Linear)
    assert net.criterion == "auto"  # which is skorch's NLLLoss for a module that ends in softmax
    assert (
        type(net.set_params(module__in_features=2, module__out_features=2).initialize().criterion_)
        is theirs.criterion
    )
    assert net.train_split.stratified
    assert net.train_split.cv == theirs.train_split.cv == 5


def test_it_is_a_classifier_with_classes(digits):
    net = classifier(max_epochs=1)
    assert is_classifier(net)
    assert net.fit(*digits).classes_.tolist() == list(range(10))
    assert net.predict_proba(digits[0]).shape == (600, 10)
    given = classifier(max_epochs=1, classes=list(range(12))).fit(*digits)
    assert list(given.classes_) == list(range(12))


def test_weights_of_classes_multiply_those_of_examples(digits):
    """If one of them were ignored, the net would be another one."""
    X, y = digits
    weights = np.linspace(0.1, 2.0, 600)
    by_class = {label: 1.0 + label for label in range(10)}
    make = lambda: classifier(train_split=None, max_epochs=1)  # noqa: E731
    both = make().fit(X, y, sample_weight=weights, class_weight=by_class)
    by_hand = make().fit(X, y, sample_weight=weights * (1.0 + y))
    assert torch.equal(parameters_of(both), parameters_of(by_hand))
    for other in ({"sample_weight": weights}, {"class_weight": by_class}):
        assert not torch.equal(parameters_of(make().fit(X, y, **other)), parameters_of(both))


def test_weights_of_classes_need_classes(digits):
    X, y = digits
    data = Items(X, y.astype("float32"))  # labels that are no integers
    with pytest.raises(ValueError, match="class_weight needs y"):
        classifier(train_split=None).fit(data, None, class_weight="balanced")


def test_a_data_set_may_hold_the_classes(digits):
    X, y = digits
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    one = classifier(train_split=None, max_epochs=1).fit(data, None)
    other = classifier(train_split=None, max_epochs=1).fit(X, y)
    assert torch.equal(parameters_of(one), parameters_of(other))
