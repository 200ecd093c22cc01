"""What users replace of skorch's training is honored, or refused with a sentence."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader

from accelerando import NeuralNet, NeuralNetRegressor
from accelerando.batch_size import GeoDamp
from accelerando.exceptions import UnsupportedError
from tests.nets import regressor


class Fixed(NeuralNetRegressor):
    """Batches of half the rows, in their order."""

    def get_iterator(self, dataset, training=False):
        if not training:
            return super().get_iterator(dataset, training)
        return DataLoader(dataset, batch_size=len(dataset) // 2)


def fit(kind, X, y, **params):
    settings = {"module__in_features": 3, "module__out_features": 1, "train_split": None}
    return kind(nn.Linear, **{**settings, "lr": 0.05, "max_epochs": 2, "verbose": 0, **params}).fit(
        X, y
    )


def test_an_own_get_iterator_makes_the_batches(line):
    net = fit(Fixed, *line)
    rows = len(line[0])
    assert net.updates_frame()["batch_size"].tolist() == [rows // 2] * 4
    with pytest.raises(UnsupportedError, match=r"overrides get_iterator.* policy could not"):
        fit(Fixed, *line, batch_size=GeoDamp())


def test_a_function_makes_the_batches(line):
    def whole(dataset, batch_size, **kwargs):
        return DataLoader(dataset, batch_size=len(dataset))

    net = fit(NeuralNetRegressor, *line, iterator_train=whole)
    assert net.updates_frame()["batch_size"].tolist() == [len(line[0])] * 2
    with pytest.raises(UnsupportedError, match="sample_weight"):
        fit_weighted = regressor(iterator_train=whole)
        fit_weighted.fit(*line, sample_weight=np.ones(len(line[0])))


def test_own_methods_of_events_are_called(line):
    seen = []

    class Own(NeuralNetRegressor):
        def notify(self, method_name, **kwargs):
            seen.append(method_name)
            super().notify(method_name, **kwargs)

        def on_grad_computed(self, net, **kwargs):
            seen.append("own")

    fit(Own, *line, max_epochs=1, batch_size=len(line[0]))
    assert seen.count("on_grad_computed") == seen.count("own") == 1
    assert seen.count("on_batch_end") == 1


def test_an_own_way_to_clear_gradients_is_called(line):
    class Own(NeuralNetRegressor):
        calls = 0

        def _zero_grad_optimizer(self, *args, **kwargs):
            Own.calls += 1
            super()._zero_grad_optimizer(*args, **kwargs)

    net = fit(Own, *line)
    assert Own.calls == net.position_.update > 0


def test_an_own_epoch_on_an_instance_is_refused(line):
    net = regressor()
    net.run_single_epoch = lambda *args, **kwargs: None
    with pytest.raises(UnsupportedError, match="overrides run_single_epoch"):
        net.fit(*line)


METHODS = ("train_step", "infer", "get_loss", "get_iterator", "notify", "on_grad_computed")


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_are_set_on_an_instance_are_called(line, name):
    net = regressor(max_epochs=1)
    method = Mock(side_effect=getattr(net, name))
    setattr(net, name, method)
    net.fit(*line)
    assert method.call_count > 0


def test_methods_on_instances_and_mocks_are_called(line):
    callback, mock, seen = Callback(), Mock(), []
    callback.on_batch_end = lambda net, **kwargs: seen.append(kwargs["loss"])
    fit(NeuralNetRegressor, *line, callbacks=[callback, ("mock", mock)], max_epochs=1)
    assert len(seen) == mock.on_batch_end.call_count > 0
    assert all(loss.requires_grad and loss.dim() == 0 for loss in seen)


def test_a_callback_that_is_appended_is_called(line):
    late = Mock()

    class Append(Callback):
        def on_batch_end(self, net, **kwargs):
            if len(net.callbacks_) and net.callbacks_[-1][1] is not late:
                net.callbacks_.append(("late", late))

    fit(NeuralNetRegressor, *line, callbacks=[Append()], max_epochs=1, batch_size=16)
    assert late.on_batch_begin.call_count > 1


class SAM(torch.optim.SGD):
    """Ascends, evaluates the loss there, and descends from where it was."""

    calls = 0

    def step(self, closure=None):
        assert closure is not None
        parameters = [p for group in self.param_groups for p in group["params"]]
        moves = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in parameters]
        with torch.no_grad():
            for p, move in zip(parameters, moves, strict=True):
                p.add_(move)
        loss = closure()
        SAM.calls += 1
        with torch.no_grad():
            for p, move in zip(parameters, moves, strict=True):
                p.sub_(move)
        super().step()
        return loss


def test_an_optimizer_that_calls_the_closure_gets_the_gradient_where_it_stands(line):
    X, y = line
    net = fit(
        NeuralNetRegressor, X, y, optimizer=SAM, max_epochs=1, batch_size=len(X), random_state=0
    )
    start = fit(NeuralNetRegressor, X, y, max_epochs=0, random_state=0).module_
    expected = nn.Linear(3, 1)
    expected.load_state_dict(start.state_dict())
    optimizer = SAM(expected.parameters(), lr=0.05)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(expected(torch.from_numpy(X)), torch.from_numpy(y))
        loss.backward()
        return loss

    closure()
    optimizer.step(closure)
    torch.testing.assert_close(net.module_.weight, expected.weight)


class Lengths(NeuralNet):
    def get_loss(self, y_pred, y_true, *args, **kwargs):
        lengths = torch.tensor([float(len(word)) for word in y_true])
        return nn.functional.mse_loss(y_pred[:, 0], lengths)


@pytest.mark.parametrize("dtype", [object, str])
def test_objects_as_targets_with_an_own_loss(line, dtype):
    words = np.array(["a" * (i % 5) for i in range(len(line[0]))], dtype=dtype)
    net = fit(Lengths, line[0], words, criterion=nn.MSELoss, max_epochs=20)
    assert net.history[-1]["train_loss"] < net.history[0]["train_loss"]


class WithoutCriterion(NeuralNet):
    def initialize_criterion(self):
        return self

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        return ((y_pred - y_true) ** 2).mean()


def test_a_net_without_a_criterion(line):
    net = fit(WithoutCriterion, *line, criterion=None, max_epochs=5)
    assert not hasattr(net, "criterion_")
    assert net.history[-1]["train_loss"] < net.history[0]["train_loss"]


class Twice(NeuralNet):
    """A second module, and a second criterion with a parameter."""

    def initialize_module(self):
        super().initialize_module()
        self.second_ = nn.Linear(1, 1)
        return self

    def initialize_criterion(self):
        super().initialize_criterion()
        self.scale_ = nn.Bilinear(1, 1, 1)
        return self

    def infer(self, x, **fit_params):
        return self.second_(super().infer(x, **fit_params))

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        return self.criterion_(y_pred, y_true) + self.scale_(y_pred, y_true).square().mean()


class Normalized(Twice):
    """The second module couples rows."""

    def initialize_module(self):
        super().initialize_module()
        self.second_ = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
        return self


@pytest.mark.parametrize("kind", [Twice, Normalized])
def test_ranks_train_all_modules_and_criteria(kind, line, client):
    settings = {"criterion": nn.MSELoss, "lr": 0.01, "random_state": 0}
    here = fit(kind, *line, **settings)
    ranks = fit(kind, *line, **settings, client=client, min_workers=2, max_workers=2)
    assert ranks.updates_frame()["ranks"].max() == 2
    for (name, one), (_, other) in zip(
        here.get_all_learnable_params(), ranks.get_all_learnable_params(), strict=True
    ):
        torch.testing.assert_close(one, other, msg=name)


def test_a_trimmed_net_predicts_and_refuses_to_train(line):
    from skorch.exceptions import SkorchTrainingImpossibleError

    net = regressor().fit(*line)
    before = net.predict(line[0])
    net.trim_for_prediction()
    assert np.array_equal(net.predict(line[0]), before)
    for method in (net.fit, net.partial_fit):
        with pytest.raises(SkorchTrainingImpossibleError):
            method(*line)
