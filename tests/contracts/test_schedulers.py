"""Schedulers that step in every update: ranks that join and die, and runs that stop in an epoch."""

import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from distributed import Client
from skorch.callbacks import EpochScoring, LRScheduler, SacredLogger
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from accelerando.exceptions import UnsupportedError
from tests._cluster.helpers import cluster_of, kill_member, when
from tests.contracts.test_changes import At, X, Y, net_with
from tests.nets import parameters_of


class Slow(nn.Linear):
    def __init__(self, seconds=0.0):
        super().__init__(6, 2, dtype=torch.float64)
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return super().forward(x)


def scheduled(updates, **params):
    cycle = LRScheduler(OneCycleLR, max_lr=0.5, total_steps=updates, step_every="batch")
    settings = {"module": Slow, "criterion": nn.CrossEntropyLoss, "callbacks": [cycle]}
    return net_with(**{**settings, **params})


def assert_same(net, other):
    torch.testing.assert_close(parameters_of(net), parameters_of(other), rtol=0, atol=1e-12)
    mine, others = net.updates_frame()["lr"], other.updates_frame()["lr"]
    np.testing.assert_allclose(mine, others, rtol=1e-12)
    groups = [one.optimizer_.param_groups[0] for one in (net, other)]
    assert groups[0]["lr"] == groups[1]["lr"]
    assert groups[0]["momentum"] == groups[1]["momentum"]


def test_a_lost_rank_does_not_change_the_schedule():
    alone = scheduled(48, max_epochs=16).fit(X, Y)
    with cluster_of(2) as cluster, Client(cluster) as client:
        params = {"client": client, "min_workers": 1, "max_workers": 2, "examples_per_worker": 10}
        net = scheduled(48, max_epochs=16, module__seconds=0.02, **params)
        killer = when(net, 10, lambda: kill_member(client, net, 0))
        net.fit(X, Y)
        killer.join()
        assert any(entry["event"] == "lost" for entry in net.world_log_)
        assert_same(net, alone)


def growing(signals):
    return 10 if signals.update < 20 else 20


def test_ranks_that_join_continue_the_schedule(client):
    params = {"batch_size": growing, "max_epochs": 8}
    alone = scheduled(60, **params).fit(X, Y)
    params.update(client=client, min_workers=1, max_workers=2, examples_per_worker=10)
    net = scheduled(60, module__seconds=0.05, **params).fit(X, Y)
    assert set(net.updates_frame()["ranks"]) == {1, 2}
    assert_same(net, alone)


def test_a_checkpoint_inside_an_epoch_continues_the_schedule(client, tmp_path):
    """OneCycleLR changes momentum, too."""
    alone = scheduled(9).fit(X, Y)
    ranks = {"client": client, "min_workers": 2, "max_workers": 2}
    folder = {"checkpoint": tmp_path, "checkpoint_every": 1, "checkpoint_keep": 100}
    assert_same(scheduled(9, **ranks, **folder).fit(X, Y), alone)
    resumed = 0
    for path in sorted(tmp_path.glob("state-*.pt")):
        for where in ({}, ranks):
            net = scheduled(9, **where).load_state(path)
            if net.position_.cursor and net.position_.update in (2, 4):
                assert_same(net.partial_fit(X, Y), alone)
                resumed += 1
    assert resumed == 4


def test_a_score_of_the_training_set_without_caching_is_the_same(client):
    def scored(**params):
        score = EpochScoring("neg_log_loss", name="log", on_train=True, use_caching=False)
        net = net_with([score], predict_nonlinearity=nn.Softmax(-1), **params)
        return net.fit(X, Y).history[:, "log"]

    ranks = {"client": client, "min_workers": 2, "max_workers": 2}
    np.testing.assert_allclose(scored(**ranks), scored(), rtol=1e-12)


def two_layers():
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def replaced(net):
    net.module_._orig_mod[1] = nn.ReLU()


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, in dynamo
def test_a_compiled_module_trains_on_ranks_and_a_replaced_layer_is_refused(client):
    params = {"module": two_layers, "criterion": nn.CrossEntropyLoss, "max_epochs": 2}
    compiled = {"compile": True, "compile__backend": "eager", **params}
    ranks = {"client": client, "min_workers": 2, "max_workers": 2}
    net = net_with(**compiled, **ranks).fit(X, Y)
    alone = net_with(**params).fit(X, Y)
    torch.testing.assert_close(parameters_of(net), parameters_of(alone), rtol=0, atol=1e-12)
    net = net_with([At(replaced)], **compiled, **ranks)
    with pytest.raises(UnsupportedError, match=r"torch\.compile"):
        net.fit(X, Y)
    assert net.position_.epoch == 1


def normed():
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, in dynamo
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_compiled_module_shares_the_statistics_of_batchnorm(client, ranks):
    params = {"module": normed, "criterion": nn.CrossEntropyLoss, "max_epochs": 2}
    compiled = {"compile": True, "compile__backend": "eager", **params}
    workers = {"client": client, "min_workers": ranks, "max_workers": ranks}
    net, alone = net_with(**compiled, **workers).fit(X, Y), net_with(**params).fit(X, Y)
    assert set(net.updates_frame()["ranks"]) == {ranks}
    torch.testing.assert_close(parameters_of(net), parameters_of(alone), rtol=0, atol=1e-12)
    mine, others = net.module_._orig_mod[1], alone.module_[1]
    torch.testing.assert_close(mine.running_var, others.running_var, rtol=0, atol=1e-12)
    net = net_with(**compiled, compile__fullgraph=True, **workers)
    with pytest.raises(UnsupportedError, match=r"compile__fullgraph=True .* statistics of '1'"):
        net.fit(X, Y)


def test_a_logger_of_batches_is_refused(client):
    net = net_with(client=client)
    net.callbacks = [SacredLogger(Mock(), log_on_batch_end=True)]
    with pytest.raises(UnsupportedError, match=r"SacredLogger.*on_batch_end"):
        net.fit(X, Y)
