"""What users replace of skorch's training does on ranks what it does here, or is refused there.

``tests/estimators/test_overrides.py`` has what each does in this process.
"""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader

from accelerando import NeuralNet, NeuralNetClassifier
from accelerando.exceptions import UnsupportedError
from tests.estimators.test_overrides import SAM, WithoutCriterion
from tests.nets import parameters_of

X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
Y = X[:, :1] - 2 * X[:, 1:2]
LABELS = (X[:, 0] > 0).astype("int64")


class LazyImages(nn.Sequential):
    """Lazy layers for rows of three numbers as pictures of 1 x 3 pixels."""

    def __init__(self):
        layers = nn.LazyConv2d(2, (1, 2)), nn.Flatten(), nn.LazyLinear(1)
        super().__init__(nn.Unflatten(1, (1, 1, 3)), *layers)


class TwoCriteria(NeuralNet):
    def initialize_criterion(self):
        super().initialize_criterion()
        self.penalty_ = nn.L1Loss()
        return self

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        return super().get_loss(y_pred, y_true, *args, **kwargs) + self.penalty_(y_pred, y_true)


class Infers(NeuralNet):
    def infer(self, x, **fit_params):
        return super().infer(2 * x, **fit_params)


def with_method():
    callback = Callback()
    callback.on_epoch_end = lambda net, **kwargs: net.optimizer_.param_groups[0].update(lr=0.2)
    return callback


class Append(Callback):
    """Appends a callback that halves the weights after each later epoch."""

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 1:
            late = Callback()
            late.on_epoch_end = self.halve
            net.callbacks_.append(("late", late))

    def halve(self, net, **kwargs):
        with torch.no_grad():
            net.module_.weight.mul_(0.5)


class AppendsPerBatch(Callback):
    def on_epoch_end(self, net, **kwargs):
        net.callbacks_.append(("mock", Mock()))


def linear():
    return nn.Linear(3, 1)


def fit(kind=NeuralNet, X=X, y=Y, **params):
    settings = {"module": linear, "criterion": nn.MSELoss, "lr": 0.05, "max_epochs": 3}
    settings |= {"batch_size": 16, "train_split": None, "random_state": 0, "verbose": 0}
    return kind(**{**settings, **params}).fit(X, y)


HONORED = {
    "lazy layers": {"module": LazyImages},
    "no criterion": {"kind": WithoutCriterion, "criterion": None},
    "two criteria": {"kind": TwoCriteria},
    "own infer": {"kind": Infers},
    "a method on an instance": {"callbacks": [with_method()]},
    "an appended callback": {"callbacks": [Append()]},
    "a closure": {"optimizer": SAM, "batch_size": 64},
}


@pytest.mark.parametrize("row", HONORED)
def test_ranks_compute_the_same(row, client):
    params = HONORED[row]
    net = fit(**params, client=client, min_workers=2, max_workers=2)
    assert net.updates_frame()["ranks"].max() == 2
    here = fit(**params)
    assert torch.allclose(parameters_of(net), parameters_of(here), atol=1e-6)
    np.testing.assert_allclose(
        net.history[:, "train_loss"], here.history[:, "train_loss"], rtol=1e-5
    )
    net.trim_for_prediction()
    np.testing.assert_allclose(net.predict(X), here.predict(X), atol=1e-5)


class OwnBatches(NeuralNet):
    def get_iterator(self, dataset, training=False):
        return DataLoader(dataset, batch_size=8)


class OwnNotify(NeuralNet):
    def notify(self, method_name, **kwargs):
        super().notify(method_name, **kwargs)


class OwnGradients(NeuralNet):
    def on_grad_computed(self, net, **kwargs): ...


class OwnEpoch(NeuralNet):
    def run_single_epoch(self, *args, **kwargs): ...


class OwnStep(NeuralNet):
    def train_step(self, batch, **fit_params):
        return super().train_step(batch, **fit_params)


class OwnLoss(NeuralNetClassifier):
    def get_loss(self, y_pred, y_true, *args, **kwargs):
        return y_pred.square().mean()


def batches_of(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size)


def watching():
    callback = Callback()
    callback.on_batch_end = Mock()
    return callback


WORDS = np.array(["word"] * 64, dtype=object)
REFUSED = {
    "own get_iterator": ({"kind": OwnBatches}, "overrides get_iterator.* ranks on a cluster"),
    "a function": ({"iterator_train": batches_of}, "decides the batches itself: ranks"),
    "own notify": ({"kind": OwnNotify}, "overrides notify, which is called for every batch"),
    "own on_grad_computed": ({"kind": OwnGradients}, "overrides on_grad_computed"),
    "own run_single_epoch": ({"kind": OwnEpoch}, "overrides run_single_epoch"),
    "own train_step": ({"kind": OwnStep}, "has its own train_step.* ranks .* could not agree"),
    "a method on an instance": ({"callbacks": [watching()]}, r"acts at every batch \(on_batch_end"),
    "a mock": ({"callbacks": [("mock", Mock())]}, "The callback mock .*acts at every batch"),
    "objects as y": ({"kind": OwnLoss, "y": WORDS}, "y holds Python objects, which no rank"),
    "words as y": ({"kind": OwnLoss, "y": WORDS.astype(str)}, "y holds Python objects, which no"),
}


@pytest.mark.parametrize("row", REFUSED)
def test_what_ranks_cannot_do_is_refused_before_training(row, client):
    params, message = REFUSED[row]
    with pytest.raises(UnsupportedError, match=message):
        fit(**params, client=client)


def test_a_callback_of_batches_that_is_appended_is_refused(client):
    net = NeuralNet(linear, nn.MSELoss, callbacks=[AppendsPerBatch()], client=client, verbose=0)
    with pytest.raises(UnsupportedError, match=r"The callback mock .*acts at every batch"):
        net.fit(X, Y)
    assert net.position_.epoch == 1
