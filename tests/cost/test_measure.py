"""Measured durations of real updates."""

import pytest
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando.cost import measure


def test_measure_counts_parameters_and_leaves_the_net_alone(digits):
    net = NeuralNetClassifier(nn.Linear(64, 10), criterion=nn.CrossEntropyLoss, batch_size=7)
    found = measure(net, *digits, updates=5)
    assert found.parameters == 650
    assert found.seconds_per_example >= 0
    assert found.seconds_per_example + found.overhead > 0
    assert net.batch_size == 7
    assert not hasattr(net, "module_")
    with pytest.raises(
        ValueError, match=r"integers from 1 to 600, the number of rows of X\. Got 601"
    ):
        measure(net, *digits, batch_sizes=(601,))


def test_wrong_numbers_of_updates_are_named(digits):
    net = NeuralNetClassifier(nn.Linear(64, 10), criterion=nn.CrossEntropyLoss)
    with pytest.raises(ValueError, match="'updates' parameter of measure must be an integer of at"):
        measure(net, *digits, updates=0)
