"""Ranks of a cluster that average parameters: the same as virtual ranks, and safe in a storm."""

import logging
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from distributed import Client, LocalCluster
from skorch.callbacks import Callback, LRScheduler
from torch import nn

from accelerando.batch_size import AdaDamp, RadaDamp
from accelerando.exceptions import NotFiniteError, UnsupportedError
from accelerando.monitor import LossTrend, ParameterSpread, Throughput
from accelerando.policies import Decision
from accelerando.sync import (
    AdaptiveAveraging,
    DecreasingAveraging,
    ElasticAveraging,
    ModelAveraging,
    OuterOptimizer,
    PeriodicAveraging,
    ring_bytes,
)
from accelerando.train.state import gather
from tests.nets import MLP, Items, classifier, parameters_of

TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}
RANKS = 3
STRATEGIES = {
    "periodic": PeriodicAveraging(3),
    "periodic, momentum averaged": PeriodicAveraging(3, optimizer_state="average"),
    "periodic, momentum reset": PeriodicAveraging(4, optimizer_state="reset"),
    "adaptive": AdaptiveAveraging(2, sample=0.4),
    "decreasing": DecreasingAveraging(6, every_epochs=1),
    "model": ModelAveraging(RANKS, momentum=0.3),
    "model, now and then": ModelAveraging(RANKS, momentum=0.0, correction=0.5, period=3),
    "elastic": ElasticAveraging(period=3, beta=0.8),
    "outer": OuterOptimizer(inner_steps=5, lr=0.8, momentum=0.5),
}
EVERY = pytest.mark.parametrize("name", STRATEGIES)
COLUMNS = ["loss", "grad_norm", "period", "spread", "synchronisations", "ranks", "batch_size"]


def net_of(sync, client=None, **params):
    settings = {
        "batch_size": 20,
        "optimizer__momentum": 0.9,
        "lr": 0.02,
        "module__norm": True,
        "module__dropout": 0.2,
        "max_epochs": 2,
    }
    wanted = sync.ranks_wanted()
    if client is None:
        where = {"virtual_ranks": wanted or RANKS}
    else:
        where = {"client": client, "min_workers": RANKS, "max_workers": RANKS}
    return classifier(sync=sync, **{**settings, **where, **params})


def same_records(one, other, columns=COLUMNS):
    one, other = one.updates_frame()[columns], other.updates_frame()[columns]
    np.testing.assert_allclose(one.to_numpy(), other.to_numpy(), rtol=2e-3, atol=1e-5)


@EVERY
def test_ranks_are_what_virtual_ranks_are(name, digits, client):
    """Dropout, BatchNorm, momentum, the last short batch, and all numbers that are recorded."""
    strategy = STRATEGIES[name]
    virtual = net_of(strategy).fit(*digits)
    real = net_of(strategy, client).fit(*digits)
    torch.testing.assert_close(parameters_of(real), parameters_of(virtual), **TOLERANCE)
    same_records(real, virtual)
    assert real.history[-1, "valid_loss"] == pytest.approx(virtual.history[-1, "valid_loss"], 1e-3)


@pytest.mark.parametrize(
    "params",
    [
        {"batch_size": RadaDamp(initial=10, dwell=5)},
        {"batch_size": AdaDamp(initial=10, dwell=5, fraction=0.3)},
        {"monitors": [ParameterSpread(every=2), LossTrend(), Throughput()]},
        {"policies": [lambda signals: Decision(period=2 + signals.epoch)]},
        {"callbacks": [LRScheduler("StepLR", step_size=1, gamma=0.5)]},
        {"criterion__reduction": "sum", "lr": 0.001},
        {"micro_batch_size": 7, "module__norm": False},
    ],
    ids=["RadaDamp", "AdaDamp", "monitors", "policy", "scheduler", "sum", "micro-batches"],
)
def test_what_decides_during_training_decides_the_same(params, digits, client):
    virtual = net_of(PeriodicAveraging(3), **params).fit(*digits)
    real = net_of(PeriodicAveraging(3), client, **params).fit(*digits)
    torch.testing.assert_close(parameters_of(real), parameters_of(virtual), **TOLERANCE)
    same_records(real, virtual)


def test_a_period_of_1_is_all_reduce(digits, client):
    settings = {"module__norm": False, "module__dropout": 0.0}
    averaged = net_of(PeriodicAveraging(1), client, **settings).fit(*digits)
    reduced = classifier(
        batch_size=20 * RANKS,
        client=client,
        min_workers=RANKS,
        max_workers=RANKS,
        optimizer__momentum=0.9,
        lr=0.02,
        max_epochs=2,
        **settings,
    ).fit(*digits)
    torch.testing.assert_close(parameters_of(averaged), parameters_of(reduced), **TOLERANCE)


@pytest.mark.parametrize(
    ("name", "told"),
    # Wishes, clocks and a fingerprint, and what updates yielded that were not told before.
    [("periodic", 5 + 2 * 3), ("model", 5 + 2), ("elastic", 5 + 2 * 3)],
)
def test_bytes_are_those_of_a_ring_and_of_what_ranks_tell(name, told, digits, client):
    frame = net_of(STRATEGIES[name], client, max_epochs=1).fit(*digits).updates_frame()
    numbers = 4 * (64 * 32 + 32 + 2 * 32 + 32 * 10 + 10 + 2 * 32) + 8
    met = frame["spread"].notna()
    assert (frame["bytes"][met] == ring_bytes(numbers + 8 * told, RANKS)).all()
    assert (frame["bytes"][~met] == 0).all()


def test_every_rank_has_the_average_after_a_meeting(digits, client, tmp_path):
    seen = []

    class Look(Callback):
        def on_epoch_end(self, net, **kwargs):
            assert net.run_.epoch == 2 or net.fleet_ is None  # not asked for before it is needed
            gather(net)
            seen.append([torch.cat([t.flatten() for t in rank]) for rank in net.fleet_.ranks])

    net_of(PeriodicAveraging(1), client, callbacks=[Look()]).fit(*digits)
    assert len(seen) == 2
    for ranks in seen:
        assert len(ranks) == RANKS
        assert all(torch.equal(ranks[0], other) for other in ranks)


class Stop(Callback):
    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch_end(self, net, **kwargs):
        if net.run_.epoch == self.epoch:
            raise KeyboardInterrupt


@EVERY
def test_resuming_equals_never_having_stopped(name, digits, client, tmp_path):
    """A state saved within a period; it is taken up by a cluster, and by virtual ranks."""
    strategy, data = STRATEGIES[name], (digits[0][:500], digits[1][:500])
    kept = {}

    class Save(Callback):
        def on_epoch_end(self, net, **kwargs):
            if net.run_.epoch == 1:
                net.save_state(tmp_path / "state")
                kept["since"] = net.run_.sync["since"]

    whole = net_of(strategy, client, callbacks=[Save()]).fit(*data)
    later = net_of(strategy, client).load_state(tmp_path / "state").partial_fit(*data)
    assert torch.equal(parameters_of(later), parameters_of(whole))
    here = net_of(strategy).load_state(tmp_path / "state").partial_fit(*data)
    torch.testing.assert_close(parameters_of(here), parameters_of(whole), **TOLERANCE)


@pytest.mark.parametrize("sync", [PeriodicAveraging(7), ModelAveraging(RANKS)], ids=["7", "model"])
def test_a_checkpoint_within_a_period_is_whole(sync, digits, client, tmp_path):
    save = {"checkpoint": tmp_path / "run", "checkpoint_every": 10}
    whole = net_of(sync, client).fit(*digits)
    broken = net_of(sync, client, callbacks=[Stop(1)], **save)
    broken.fit(*digits)
    later = net_of(sync, client, **save)
    later.fit(*digits)
    assert torch.equal(parameters_of(later), parameters_of(whole))
    same_records(later, whole)


def test_a_callback_that_changes_parameters_changes_all_ranks(digits, client):
    class Zero(Callback):
        def on_epoch_end(self, net, **kwargs):
            with torch.no_grad():
                for parameter in net.module_.parameters():
                    parameter.zero_()

    settings = {"callbacks": [Zero()], "module__norm": False, "module__dropout": 0.0}
    net = net_of(PeriodicAveraging(5), client, **settings).fit(*digits)
    virtual = net_of(PeriodicAveraging(5), **settings).fit(*digits)
    same_records(net, virtual)


def test_what_cannot_be_is_said_before(digits, client):
    with pytest.raises(UnsupportedError, match="max_workers=1"):
        net_of(PeriodicAveraging(2), client, min_workers=1, max_workers=1).fit(*digits)
    with pytest.raises(UnsupportedError, match=r"client=distributed\.Client"):
        classifier(sync=ModelAveraging("auto")).fit(*digits)


@pytest.mark.parametrize("name", ["periodic", "model"])
def test_an_error_of_one_rank_ends_training(name, digits, client):
    """The others may be waiting for it, or their messages be on the way, while it takes a step."""
    X, y = digits[0].copy(), digits[1]
    X[len(X) // 2, 0] = np.nan
    net = net_of(STRATEGIES[name], client, train_split=None, module__norm=False, max_epochs=1)
    with pytest.raises(NotFiniteError, match="The estimator holds the average of update"):
        net.fit(X, y)
    assert 0 < net.run_.update < len(X) // (20 * RANKS)
    assert parameters_of(net).isfinite().all()


def test_more_ranks_than_rows_are_not_used(client):
    X, y = np.zeros((4, 64), "float32"), np.array([0, 1, 0, 1])
    net = net_of(PeriodicAveraging(2), client, train_split=None, max_epochs=1).fit(X, y)
    assert set(net.updates_frame()["ranks"]) == {2}  # BatchNorm wants two rows


# -- ranks that come, go and die ------------------------------------------------------------------


class Paced(nn.Module):
    def __init__(self, seconds=0.005):
        super().__init__()
        self.net = MLP()
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.net(x)


def paced(client, sync, **params):
    settings = {
        "batch_size": 16,
        "optimizer__momentum": 0.5,
        "lr": 0.1,
        "max_epochs": 20,
        "rank_timeout": 2.0,
        "random_state": 0,
    }
    return classifier(Paced, client=client, sync=sync, **{**settings, **params})


def when(net, update, action):
    def wait():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            drive = getattr(net, "drive_", None)
            if drive is not None and drive.hearing.update >= update:
                return action()
            time.sleep(0.002)
        return None

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def cluster_of(workers):
    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        dashboard_address=":0",
        silence_logs=logging.CRITICAL,
    )


def pids(cluster):
    workers = list(cluster.workers.values())
    return [w.process.pid for w in workers if w.process is not None and w.process.pid]


@pytest.fixture(scope="module")
def longer(digits):
    """Epochs that are long beside the time between them."""
    return np.concatenate([digits[0]] * 5), np.concatenate([digits[1]] * 5)


@pytest.mark.parametrize("name", ["periodic", "model", "outer"])
def test_a_killed_rank_loses_its_own_steps_only(name, longer):
    sync = {**STRATEGIES, "periodic": PeriodicAveraging(25)}[name]
    with cluster_of(RANKS) as cluster, Client(cluster) as client:
        net = paced(client, sync, max_epochs=4)
        thread = when(net, 20, lambda: os.kill(pids(cluster)[-1], signal.SIGKILL))
        net.fit(*longer)
        thread.join()
    frame = net.updates_frame()
    assert frame["update"].tolist() == list(range(1, len(frame) + 1))
    assert frame["ranks"].min() == RANKS - 1
    assert frame["loss"].iloc[-20:].mean() < 0.7 * frame["loss"].iloc[:20].mean()
    assert net.score(*longer) > 0.7
    told = [event["text"] for event in net.world_log_ if event["event"] == "unaveraged"]
    assert len(told) == 1
    assert "what the others did is kept" in told[0]
    # Nobody starts from the last average: the loss goes on where it was.
    at = frame.index[frame["ranks"] == RANKS - 1][0]
    assert frame["loss"][at : at + 5].mean() < 1.5 * frame["loss"][at - 10 : at].mean()


@pytest.mark.parametrize("epoch", [3.0, 3.5], ids=["between epochs", "within one"])
def test_other_ranks_go_on_from_the_average(epoch, longer):
    """Workers come while training goes on; a policy sends some away, at once or with an epoch."""
    total = 4 * len(longer[0]) // 5

    def most(signals):
        return Decision(workers=2 if signals.examples >= epoch * total else 4)

    with cluster_of(2) as cluster, Client(cluster) as client:
        net = paced(client, PeriodicAveraging(45), policies=[most], max_epochs=5)
        thread = when(net, 15, lambda: cluster.scale(4))
        net.fit(*longer)
        thread.join()
    frame = net.updates_frame()
    sizes = frame["ranks"].tolist()
    assert sizes[0] == sizes[-1] == 2
    assert max(sizes) == 4
    assert frame["update"].tolist() == list(range(1, len(frame) + 1))
    for at in np.flatnonzero(np.diff(frame["ranks"])):
        # Before or between, ranks have met, whatever the period.
        assert frame["synchronisations"][at + 1] > frame["synchronisations"][at - 1]
        assert frame["loss"][at + 1 : at + 6].mean() < 1.5 * frame["loss"][at - 9 : at + 1].mean()
    assert net.score(*longer) > 0.7


def nothing(signals):
    return None


@pytest.mark.parametrize(
    ("sync", "policies"),
    # Policies make ranks talk in every update, so that they stop in the middle of a period. Those
    # that are pulled have not told of their last step.
    [(PeriodicAveraging(1000), [nothing]), (ModelAveraging(2), [])],
    ids=["periodic", "model"],
)
def test_ctrl_c_and_going_on_is_exact(sync, policies, digits):
    with cluster_of(2) as cluster, Client(cluster) as client:
        settings = {"policies": policies, "max_epochs": 8, "module__seconds": 0.01}
        whole = paced(client, sync, **settings).fit(*digits)
        net = paced(client, sync, **settings)
        thread = when(net, 50, lambda: os.kill(os.getpid(), signal.SIGINT))
        net.fit(*digits)
        thread.join()
        stopped = net.run_.update
        assert 50 <= stopped < len(whole.updates_frame())
        assert net.run_.sync["since"] == (stopped if policies else 1)
        net.partial_fit(*digits)
    assert torch.equal(parameters_of(net), parameters_of(whole))
    same_records(net, whole)


def test_as_many_replicas_as_pay(digits):
    """Two are twice as fast as one here, since each sleeps; four are not, for want of workers."""
    with cluster_of(2) as cluster, Client(cluster) as client:
        sync = ModelAveraging("auto", momentum=0.5)
        net = paced(client, sync, max_epochs=6, module__seconds=0.02).fit(*digits)
    assert net.updates_frame()["ranks"].iloc[0] == 1
    assert net.updates_frame()["ranks"].iloc[-1] == 2
    assert net.history[-1, "replicas"] == 2
    curve = dict(net.history[-1, "replicas_throughput"])
    assert set(curve) == {1, 2}
    assert curve[2] > 1.05 * curve[1]


def test_shards_and_data_sets(digits, client):
    import dask.array as da

    X, y = digits
    chunks = {"chunks": (300, -1)}
    arrays = da.from_array(X, **chunks), da.from_array(y, chunks=300)
    net = net_of(PeriodicAveraging(3), client, data="shard", train_split=None).fit(*arrays)
    assert net.score(X, y) > 0.3
    items = net_of(PeriodicAveraging(3), client, train_split=None).fit(Items(X, y), None)
    virtual = net_of(PeriodicAveraging(3), train_split=None).fit(Items(X, y), None)
    torch.testing.assert_close(parameters_of(items), parameters_of(virtual), **TOLERANCE)
