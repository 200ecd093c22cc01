"""Large models stay on the ranks until somebody needs them; nobody can see a difference."""

import os
import signal
import time

import numpy as np
import pytest
import torch
from distributed import Client
from skorch.callbacks import Callback, EarlyStopping, EpochScoring, LRScheduler
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando._cluster.driver import machine
from accelerando._cluster.driver.collect import DriverCopy
from accelerando.batch_size import GeoDamp, RadaDamp
from accelerando.exceptions import ClusterError
from tests._cluster.helpers import cluster_of, when
from tests.leftovers import check_nothing_left
from tests.nets import MLP, classifier, parameters_of

EXACT = {"rtol": 1e-12, "atol": 1e-12}
STEP = LRScheduler("StepLR", step_size=1, gamma=0.5)


class Large(nn.Module):
    """More than 1 MiB of float64."""

    def __init__(self, seconds=0.0):
        super().__init__()
        self.net = MLP(hidden=2000).double()
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.net(x.double())


class Reads(Callback):
    def on_epoch_end(self, net, **kwargs):
        net.history.record("size", float(parameters_of(net).norm()))


class Subclass(NeuralNetClassifier):
    def on_epoch_end(self, net, **kwargs):
        super().on_epoch_end(net, **kwargs)
        self.history.record("size", float(parameters_of(self).norm()))


def size_of(net, X, y):
    return float(parameters_of(net).norm())


def net_of(client, **params):
    settings = {
        "optimizer": torch.optim.Adam,
        "lr": 1e-3,
        "max_epochs": 5,
        "batch_size": 96,
        "examples_per_worker": 16,
        "min_workers": 2,
        "max_workers": 2,
        "rank_timeout": 2.0,
    }
    return classifier(Large, client=client, **{**settings, **params})


@pytest.fixture
def traffic(monkeypatch):
    """Return what was done to the driver's model, in order."""
    seen = []
    for name, method in [(name, getattr(DriverCopy, name)) for name in ("load", "note", "pack")]:

        def call(self, *args, name=name, method=method):
            seen.append(name)
            return method(self, *args)

        monkeypatch.setattr(DriverCopy, name, call)
    return seen


def check_same(net, other):
    torch.testing.assert_close(parameters_of(net), parameters_of(other), **EXACT)
    assert net.position_ == other.position_
    assert len(net.history) == len(other.history)
    for row, expected in zip(net.history, other.history, strict=True):
        assert row.keys() == expected.keys()
        assert len(row["batches"]) == len(expected["batches"])
        for name in {"train_loss", "valid_loss", "valid_acc", "event_lr"} & row.keys():
            assert row[name] == pytest.approx(expected[name], rel=1e-9)
    frame, expected = net.updates_frame(), other.updates_frame()
    for column in ("update", "epoch", "examples", "batch_size", "lr"):
        assert frame[column].tolist() == expected[column].tolist()
    rows, expected = (one._state_.records.epochs.tensor() for one in (net, other))
    assert torch.equal(rows[:, :-1], expected[:, :-1])  # all but the seconds
    states = [one.optimizer_.state_dict()["param_groups"] for one in (net, other)]
    assert states[0] == states[1]


UNSEEN = {
    "the defaults": {},
    "no validation": {"train_split": None},
    "a learning rate that changes": {"callbacks": [STEP]},
    "a batch that grows": {"batch_size": GeoDamp(48, delay=2, factor=2)},
}


@pytest.mark.parametrize("params", UNSEEN.values(), ids=UNSEEN)
@pytest.mark.timeout(120)
def test_a_model_that_nobody_looks_at_travels_once(params, client, digits, traffic):
    net = net_of(client, **params).fit(*digits)
    assert traffic == ["pack", *["note"] * 4, "load"]
    check_same(net, net_of(None, **params).fit(*digits))


@pytest.mark.timeout(120)
def test_a_fit_that_stops_early_has_the_newest_model(client, digits, traffic):
    stopping = [EarlyStopping(patience=2, threshold=1.0, monitor="valid_loss", sink=str)]
    net = net_of(client, callbacks=stopping, max_epochs=9).fit(*digits)
    assert traffic == ["pack", *["note"] * 3, "load"]
    here = net_of(None, callbacks=stopping, max_epochs=9).fit(*digits)
    check_same(net, here)
    check_same(net.partial_fit(*digits), here.partial_fit(*digits))


SEEN = {
    "a callback": {"callbacks": [Reads()]},
    "a metric of the user": {"callbacks": [EpochScoring(size_of, name="size")]},
    "a metric without the ranks' predictions": {
        "callbacks": [EpochScoring("accuracy", name="twice", use_caching=False)]
    },
    "the best model": {"callbacks": [EarlyStopping(load_best=True, sink=str)]},
    "the average": {"ema": 0.9},
    "a policy that reads the loss": {"batch_size": RadaDamp(64, dwell=2)},
    "validation here": {"iterator_valid__drop_last": True},
}


@pytest.mark.parametrize("params", SEEN.values(), ids=SEEN)
@pytest.mark.timeout(120)
def test_whoever_looks_at_the_model_gets_the_newest(params, client, digits, traffic):
    net = net_of(client, max_epochs=3, **params).fit(*digits)
    assert traffic.count("load") == 3
    assert "note" not in traffic
    here = net_of(None, max_epochs=3, **params).fit(*digits)
    torch.testing.assert_close(parameters_of(net), parameters_of(here), **EXACT)
    if "size" in here.history[-1]:
        np.testing.assert_allclose(net.history[:, "size"], here.history[:, "size"], rtol=1e-12)


@pytest.mark.timeout(120)
def test_a_subclass_and_a_checkpoint_get_the_newest_model(client, digits, traffic, tmp_path):
    params = net_of(client, max_epochs=2, checkpoint=tmp_path / "run").get_params()
    net = Subclass(**params).fit(*digits)
    assert "note" not in traffic
    assert net.history[-1]["size"] == float(parameters_of(net).norm())
    again = net_of(None, max_epochs=2).initialize().load_state(tmp_path / "run")
    torch.testing.assert_close(parameters_of(net), parameters_of(again), **EXACT)


@pytest.mark.timeout(120)
def test_the_model_is_collected_now_and_then(client, digits, traffic, monkeypatch):
    monkeypatch.setattr(machine, "_HELD_SECONDS", 0.0)
    net_of(client, max_epochs=3).fit(*digits)
    assert traffic == ["pack", "load", "load", "load"]


# -- losses ---------------------------------------------------------------------------------------


def kill_all(cluster, *, for_good=False):
    for nanny in list(cluster.workers.values()):
        if for_good:
            nanny.close_gracefully()  # it does not start the worker again
        os.kill(nanny.process.pid, signal.SIGKILL)


def disturbed(cluster, act, **params):
    """Return a net whose fit something happens to, in the fourth epoch of five updates."""
    net = net_of(Client(cluster), max_epochs=8, module__seconds=0.02, callbacks=[STEP], **params)
    when(net, 17, act)
    return net


@pytest.fixture(scope="module")
def quiet(digits):
    """The same run, undisturbed, in this process."""
    return net_of(None, max_epochs=8, callbacks=[STEP]).fit(*digits)


@pytest.mark.timeout(180)
def test_epochs_are_trained_again_after_the_loss_of_all_workers(digits, traffic, quiet):
    with cluster_of(2) as cluster:
        net = disturbed(cluster, lambda: kill_all(cluster)).fit(*digits)
        check_nothing_left(net.client)
        net.client.close()
    assert "again" in {entry["event"] for entry in net.world_log_}
    assert traffic[:4] == ["pack", "note", "note", "note"]
    assert traffic.count("pack") >= 2
    check_same(net, quiet)


def check_went_back(net, quiet, digits):
    """What is left fits together, and training continues from it."""
    position = net.position_
    assert position.update < 15
    assert len(net.updates_frame()) == position.update
    assert len(net._state_.records.epochs) == position.epoch
    assert len(net.history) == position.epoch + position.epoch_open
    assert sum(len(row["batches"]) for row in net.history) == position.update
    assert "What ranks did after update 0 is lost" in net.world_log_[-1]["text"]
    net.set_params(client=None)
    check_same(net.partial_fit(*digits), quiet)


@pytest.mark.timeout(180)
def test_without_workers_the_run_goes_back_to_the_model_that_is_here(digits, quiet):
    with cluster_of(2) as cluster:
        net = disturbed(cluster, lambda: kill_all(cluster, for_good=True), worker_timeout=1.0)
        with pytest.raises(ClusterError, match="no worker"):
            net.fit(*digits)
        net.client.close()
    check_went_back(net, quiet, digits)


@pytest.mark.timeout(180)
def test_ctrl_c_fetches_the_model(digits, quiet, traffic):
    with cluster_of(2) as cluster:
        net = disturbed(cluster, lambda: signal.raise_signal(signal.SIGINT)).fit(*digits)
        net.client.close()
    assert traffic[0] == "pack"
    assert traffic.count("note") == len(traffic) - 2 >= 3
    assert traffic[-1] == "load"
    assert 17 <= net.position_.update < 40
    assert len(net.updates_frame()) == net.position_.update
    net.set_params(client=None)
    check_same(net.partial_fit(*digits), quiet)
