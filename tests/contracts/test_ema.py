"""``ema=`` on ranks: weights, average, validation and predictions are those of this process.

A row is what happens during the fit. Everything is equal to 1e-12 in float64.
"""

import time

import numpy as np
import pytest
import torch
from distributed import Client
from skorch.callbacks import Callback, Freezer
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando.batch_size import GeoDamp, RadaDamp
from accelerando.compress import QSGD
from accelerando.exceptions import UnsupportedError
from accelerando.sync import PeriodicAveraging
from tests._cluster.helpers import Wait, cluster_of, kill_member, when
from tests.contracts.test_changes import (
    At,
    X,
    Y,
    freeze_first,
    net_with,
    parametrize,
    replace_trained_layer,
    scale_data,
    swap_weight,
    tie,
)
from tests.nets import parameters_of

TOLERANCE = {"rtol": 0, "atol": 1e-12}


def narrow(net):
    """A layer of another shape: its average starts anew."""
    net.module_.first = nn.Linear(6, 8, bias=False).double()
    net.module_.first.weight.fill_(0.1)
    net.optimizer_ = torch.optim.SGD(net.module_.parameters(), lr=0.1)


def restart(net):
    """Weights stay what they are, and the average begins again."""
    net._state_.ema.restart()


def change_average(net):
    with net.averaged_weights():
        net.module_.norm.running_mean.add_(0.5)
        net.module_.last.bias.add_(0.5)


class Slow(nn.Linear):
    """Takes its time, so that something can happen to an update."""

    def __init__(self, seconds=0.0):
        super().__init__(6, 2, dtype=torch.float64)
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return super().forward(x)


class Predicts(Callback):
    def on_epoch_end(self, net, **kwargs):
        net.history.record("seen", float(net.predict_proba(X).sum()))


ROWS = {
    "plain": {},
    "long memory": {"ema": 0.999},
    "policy": {"batch_size": RadaDamp(initial=10)},
    "ranks that join": {
        "batch_size": GeoDamp(initial=10, delay=1, factor=2),
        "callbacks": [Wait()],
        "grows": True,
    },
    "predictions in callbacks": {"callbacks": [Predicts()]},
    "frozen": {"callbacks": [Freezer("first*")]},
    "frozen later": {"callbacks": [At(freeze_first)]},
    "weight.data": {"callbacks": [At(scale_data)]},
    "weight replaced": {"callbacks": [At(swap_weight)]},
    "layer replaced": {"callbacks": [At(replace_trained_layer)]},
    "layer of another shape": {"callbacks": [At(narrow)]},
    "tied": {"callbacks": [At(tie)]},
    "parametrization": {"callbacks": [At(parametrize)]},
    "average restarted": {"callbacks": [At(restart)]},
    "average changed": {"callbacks": [At(change_average)]},
}


def fit(ranks=0, client=None, grows=False, **params):
    if ranks:
        params.update(client=client, min_workers=1 if grows else ranks, max_workers=ranks)
        params["examples_per_worker"] = 10
    split = NeuralNetClassifier(nn.Linear).train_split
    torch.manual_seed(1)
    return net_with(**{"ema": 0.8, "train_split": split, **params}).fit(X, Y)


def average_of(net):
    with net.averaged_weights():
        tensors = (*net.module_.parameters(), *net.module_.buffers())
        return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def assert_same(net, other):
    torch.testing.assert_close(parameters_of(net), parameters_of(other), **TOLERANCE)
    torch.testing.assert_close(average_of(net), average_of(other), **TOLERANCE)
    for name in ("valid_loss", "valid_acc"):
        mine, others = net.history[:, name], other.history[:, name]
        np.testing.assert_allclose(mine, others, rtol=0, atol=1e-12)
    np.testing.assert_allclose(net.predict_proba(X), other.predict_proba(X), atol=1e-12)
    if "seen" in net.history[-1]:
        np.testing.assert_allclose(net.history[:, "seen"], other.history[:, "seen"], atol=1e-11)


@pytest.mark.parametrize("row", ROWS)
def test_an_average_is_the_same_on_ranks(row, client):
    alone = fit(**ROWS[row])
    assert not torch.allclose(average_of(alone)[: len(parameters_of(alone))], parameters_of(alone))
    for ranks in (1, 2):
        net = fit(ranks, client, **ROWS[row])
        used = set(net.updates_frame()["ranks"])
        assert used == ({1, 2} if "grows" in ROWS[row] and ranks == 2 else {ranks})
        assert_same(net, alone)


class Iterates(Callback):
    """Note the parameters before every step."""

    def __init__(self):
        self.noted = []

    def on_grad_computed(self, net, named_parameters, **kwargs):
        self.noted.append(parameters_of(net).clone())


def test_with_compression_the_average_is_that_of_the_iterates(client):
    callbacks = [("iterates", Iterates())]
    net = fit(2, client, callbacks=callbacks, compression=QSGD(), train_split=None)
    iterates = [*dict(net.callbacks_)["iterates"].noted[1:], parameters_of(net)]
    assert len(iterates) == 9
    weights = torch.tensor([0.8**n for n in reversed(range(9))], dtype=torch.float64)
    expected = ((weights / weights.sum())[:, None] * torch.stack(iterates)).sum(0)
    torch.testing.assert_close(average_of(net)[: len(expected)], expected, **TOLERANCE)


def test_a_cluster_predicts_with_the_average(client):
    net = fit(2, client)
    many = np.tile(X, (4, 1))
    expected = fit().predict_proba(many)
    np.testing.assert_allclose(net.predict_proba(many), expected, atol=1e-12)
    dask_array = pytest.importorskip("dask.array")
    lazy = net.predict_proba(dask_array.from_array(many, chunks=(50, 6)))
    net.partial_fit(X, Y)  # predictions are those of the moment they were asked for
    np.testing.assert_allclose(lazy.compute(), expected, atol=1e-12)


def test_a_checkpoint_inside_an_epoch_of_ranks_continues_anywhere(client, tmp_path):
    alone = fit()
    folder = {"checkpoint": tmp_path, "checkpoint_every": 1, "checkpoint_keep": 100}
    fit(2, client, **folder)
    states = sorted(tmp_path.glob("state-*.pt"))
    resumed = 0
    for path in states:
        net = net_with(ema=0.8, train_split=alone.train_split).load_state(path)
        if net.position_.cursor and net.position_.update in (2, 6):
            resumed += 1
            assert_same(net.partial_fit(X, Y), alone)
            on_ranks = net_with(ema=0.8, train_split=alone.train_split, client=client)
            on_ranks.set_params(min_workers=2, max_workers=2).load_state(path)
            assert_same(on_ranks.partial_fit(X, Y), alone)
    assert resumed == 2


def test_a_lost_first_rank_does_not_take_the_average_with_it():
    params = {"module": Slow, "criterion": nn.CrossEntropyLoss, "ema": 0.97, "max_epochs": 16}
    alone = fit(**params)
    with cluster_of(2) as cluster, Client(cluster) as client:
        params.update(client=client, min_workers=1, max_workers=2, examples_per_worker=10)
        net = net_with(module__seconds=0.02, train_split=alone.train_split, **params)
        killer = when(net, 10, lambda: kill_member(client, net, 0))
        net.fit(X, Y)
        killer.join()
        assert any(entry["event"] == "lost" for entry in net.world_log_)
        assert set(net.updates_frame()["ranks"]) == {1, 2}
        assert_same(net, alone)


def test_strategies_with_weights_of_each_rank_are_refused_before_training(client):
    with pytest.raises(UnsupportedError, match="every rank has its own weights"):
        fit(2, client, sync=PeriodicAveraging(period=2))
