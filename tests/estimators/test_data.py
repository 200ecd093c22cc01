"""Weights of examples and classes, factories of data sets, samples of rows."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
import sklearn
import torch
from skorch.dataset import Dataset as SkorchDataset
from torch import nn
from torch.utils.data import Subset, TensorDataset

from accelerando._engine.data.feed import ArrayFeed
from accelerando._engine.micro_batch import mass
from accelerando.estimators._cluster import data_owners
from accelerando.estimators._data import (
    FactoryDataset,
    combine_weights,
    forward_of,
    sample_rows,
    standing_in,
    training_weights,
)
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


# -- the functions --------------------------------------------------------------------------------


def test_weights_are_multiplied_and_either_may_be_missing():
    y = np.array([0, 1, 1])
    assert combine_weights(None, None, y) is None
    assert combine_weights([1.0, 2.0, 3.0], None, y) == [1.0, 2.0, 3.0]
    assert combine_weights(None, {0: 5.0, 1: 2.0}, y).tolist() == [5.0, 2.0, 2.0]
    assert combine_weights([1.0, 2.0, 3.0], {0: 5.0, 1: 2.0}, y).tolist() == [5.0, 4.0, 6.0]
    assert combine_weights(None, {0: 5.0, 1: 2.0}, torch.from_numpy(y)).tolist() == [5.0, 2.0, 2.0]


def test_weights_of_training_rows_have_a_mean_of_one():
    weights = training_weights([1.0, 3.0], 2, SkorchDataset(np.zeros((2, 1)), np.zeros(2)))
    assert weights.tolist() == [0.5, 1.5]
    assert weights.dtype == torch.get_default_dtype()


def test_weights_follow_their_rows_through_nested_subsets():
    data = TensorDataset(torch.zeros(6, 1), torch.zeros(6))
    nested = Subset(Subset(data, [5, 4, 2, 1]), [3, 0])  # rows 1 and 5
    weights = training_weights([0.0, 10.0, 20.0, 30.0, 40.0, 50.0], 6, nested)
    assert weights.tolist() == pytest.approx([10 / 30, 50 / 30])


def test_weights_of_rows_that_a_splitter_made_up_are_refused():
    with pytest.raises(UnsupportedError, match="which examples train_split left"):
        training_weights(np.ones(6), 6, TensorDataset(torch.zeros(5, 1), torch.zeros(5)))
    with pytest.raises(UnsupportedError, match="which examples train_split left"):
        training_weights(np.ones(6), 6, object())


def test_a_factory_is_called_once_in_every_process(line):
    calls = []

    def make():
        calls.append(1)
        return SkorchDataset(*line)

    data = FactoryDataset(make)
    assert calls == []
    assert len(data) == 120
    assert data[3][0].tolist() == line[0][3].tolist()
    assert calls == [1]
    other = FactoryDataset(partial(list, [(0.0, 1)]))
    assert other[0] == (0.0, 1)
    copied = pickle.loads(pickle.dumps(other))
    assert copied._built is None, "only the function is sent"
    assert copied[0] == (0.0, 1)


def test_a_function_is_a_data_set(line):
    net = regressor(max_epochs=1).fit(lambda: SkorchDataset(*line), None)
    assert torch.equal(parameters_of(net), parameters_of(regressor(max_epochs=1).fit(*line)))


def test_a_sample_of_two_rows():
    feed = ArrayFeed([torch.arange(6.0).reshape(3, 2), torch.zeros(3)], None)
    assert sample_rows(feed)().tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert sample_rows(ArrayFeed([torch.ones(1, 2), torch.zeros(1)], None))().shape == (1, 2)
    feed.n_examples = None
    assert sample_rows(feed) is None, "a stream cannot be read twice"


def test_a_copy_of_the_module_is_called_with_the_fit_params():
    class Two(nn.Module):
        def forward(self, x, scale=1.0):
            return x * scale

    forward = forward_of(regressor(), {"scale": 3.0})
    assert forward(Two(), np.float32([2.0])).tolist() == [6.0]
    assert forward(Two(), {"x": np.float32([2.0])}).tolist() == [6.0]


def test_what_stands_in_for_a_module_has_its_attributes():
    net = regressor(module=nn.Linear, module__in_features=3, module__out_features=1).initialize()
    module = net.module_
    with standing_in(net, lambda x: x + 1):
        assert net.module_(2) == 3
        assert net.module_.weight is module.weight
        assert net.module_.training is module.training
        net.module_.note = "seen"
    assert net.module_ is module
    assert module.note == "seen"


def test_whose_data_they_are(line):
    X, y = line
    wrapped = Subset(SkorchDataset({"a": X, "b": X + 1}, y), [0, 1])
    owners = data_owners(wrapped)
    assert owners[0] is X
    assert len(owners) == 2
    data = TensorDataset(torch.zeros(2, 1), torch.zeros(2))
    assert data_owners(Subset(data, [0])) == [data]
