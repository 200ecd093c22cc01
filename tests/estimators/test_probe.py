"""The default criterion follows the module, and lazy modules get their shapes."""

from __future__ import annotations

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn
from torch.utils.data import IterableDataset

from accelerando import NeuralNetClassifier
from accelerando.estimators._probe import Recipe, is_distribution, probe
from accelerando.exceptions import UnsupportedError
from tests.nets import MLP, parameters_of


def net_with(module=MLP, **params):
    settings = {"lr": 0.1, "max_epochs": 2, "random_state": 0, "verbose": 0}
    return NeuralNetClassifier(module, **{**settings, **params})


class Soft(MLP):
    def forward(self, x):
        return super().forward(x).softmax(1)


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.LazyLinear(16), nn.LazyLinear(10)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (torch.rand(8, 3).softmax(1), True),
        (torch.rand(8, 3, 5, 5).softmax(1), True),
        (torch.rand(8, 3).softmax(1).half(), True),
        (torch.rand(8, 3).log_softmax(1), False),
        (torch.randn(8, 3), False),
        (torch.tensor([[0.5, 0.5], [0.6, 0.6]]), False),
        (torch.tensor([[2.0, -1.0]]), False),
        (torch.rand(8), True),
    ],
)
def test_probabilities_are_not_negative_and_have_a_sum_of_one(outputs, expected):
    assert is_distribution(outputs) is expected


def test_logits_are_trained_with_cross_entropy(digits, capsys):
    net = net_with(verbose=1).fit(*digits)
    said = capsys.readouterr().out
    assert said.count("The outputs of MLP are no probabilities") == 1
    explicit = net_with(criterion=nn.CrossEntropyLoss).fit(*digits)
    assert torch.equal(parameters_of(net), parameters_of(explicit))
    assert np.allclose(net.predict_proba(digits[0]).sum(1), 1, atol=1e-5)
    net.partial_fit(*digits)
    assert "no probabilities" not in capsys.readouterr().out


def test_a_module_that_ends_in_softmax_is_trained_as_in_skorch(digits, capsys):
    net = net_with(Soft, verbose=1).fit(*digits)
    assert type(net.criterion_) is nn.NLLLoss
    assert "no probabilities" not in capsys.readouterr().out
    explicit = net_with(Soft, criterion=nn.NLLLoss).fit(*digits)
    assert torch.equal(parameters_of(net), parameters_of(explicit))


def test_an_explicit_criterion_is_never_changed(digits):
    net = net_with(criterion=nn.NLLLoss, max_epochs=0).fit(*digits)
    net.predict_proba(digits[0])
    assert type(net.criterion_) is nn.NLLLoss


def test_weights_of_rows_are_weights_of_cross_entropy(digits):
    weights = np.linspace(0.5, 2.0, len(digits[1]))
    net = net_with().fit(*digits, sample_weight=weights)
    explicit = net_with(criterion=nn.CrossEntropyLoss).fit(*digits, sample_weight=weights)
    assert torch.equal(parameters_of(net), parameters_of(explicit))


def test_the_decision_is_in_copies_and_files(digits, tmp_path):
    net = net_with().fit(*digits)
    net.save_state(tmp_path / "state.pt")
    loaded = net_with().load_state(tmp_path / "state.pt")
    for copy in (pickle.loads(pickle.dumps(net)), loaded):
        assert type(copy.criterion_) is nn.CrossEntropyLoss
        assert np.array_equal(copy.predict_proba(digits[0]), net.predict_proba(digits[0]))
    assert clone(net).criterion == "auto"
    net.set_params(criterion__label_smoothing=0.1)
    assert type(net.criterion_) is nn.CrossEntropyLoss


def test_loaded_parameters_predict_probabilities(digits, tmp_path):
    net = net_with().fit(*digits)
    net.save_params(f_params=tmp_path / "params.pt")
    other = net_with().initialize()
    other.load_params(f_params=tmp_path / "params.pt")
    assert np.allclose(other.predict_proba(digits[0]), net.predict_proba(digits[0]))


def test_names_are_in_files(digits, tmp_path):
    names = np.array([f"digit {label}" for label in digits[1]])
    net = net_with().fit(digits[0], names)
    net.save_state(tmp_path / "state.pt")
    loaded = net_with().load_state(tmp_path / "state.pt")
    assert np.array_equal(loaded.predict(digits[0]), net.predict(digits[0]))
    assert Recipe.of(net._recipe_.plain()).labels.tolist() == net.classes_.tolist()


def test_asking_the_module_changes_nothing(digits):
    class Noisy(nn.Sequential):
        def forward(self, x):
            return super().forward(x + torch.randn_like(x))

    net = net_with(Noisy(nn.BatchNorm1d(64), nn.Linear(64, 10))).initialize()
    before, state = deepcopy(net.module_.state_dict()), torch.get_rng_state()
    assert probe(net, *digits, {}).shape == (16, 10)
    assert torch.equal(torch.get_rng_state(), state)
    after = net.module_.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_lazy_modules(digits):
    net = net_with(Lazy, optimizer=torch.optim.Adam, lr=0.01, max_epochs=8).fit(*digits)
    assert net.module_.first.in_features == 64
    assert net.score(*digits) > 0.6
    torch.manual_seed(1)  # which random_state does not follow
    again = net_with(Lazy, optimizer=torch.optim.Adam, lr=0.01, max_epochs=8).fit(*digits)
    assert torch.equal(parameters_of(net), parameters_of(again))


def test_a_stream_does_not_tell_shapes(digits):
    class Stream(IterableDataset):
        def __iter__(self):
            return zip(*digits, strict=True)

    with pytest.raises(UnsupportedError, match="The module is lazy"):
        net_with(Lazy, train_split=None).fit(Stream(), None)
