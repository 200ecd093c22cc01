"""Ranks of a cluster that average parameters train as virtual ranks do."""

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback, LRScheduler

from accelerando.batch_size import AdaDamp, RadaDamp
from accelerando.compress import QSGD, ErrorFeedback, TopK
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
from tests.nets import Items, classifier, parameters_of

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
COLUMNS = ["loss", "grad_norm", "period", "spread", "averagings", "ranks", "batch_size"]


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


@pytest.mark.parametrize("name", ["periodic", "model, now and then", "outer"])
@pytest.mark.parametrize("codec", [QSGD(bits=8), ErrorFeedback(TopK(0.3))], ids=["qsgd", "top-k"])
def test_ranks_that_compress_are_what_virtual_ranks_are(name, codec, digits, client):
    params = {"compression": codec, "max_epochs": 1}
    virtual = net_of(STRATEGIES[name], **params).fit(*digits)
    real = net_of(STRATEGIES[name], client, **params).fit(*digits)
    torch.testing.assert_close(parameters_of(real), parameters_of(virtual), rtol=1e-3, atol=2e-3)
    sent = [net.updates_frame()["bytes"].sum() for net in (real, virtual)]
    assert sent[0] == pytest.approx(sent[1], rel=0.3)  # buffers of ranks have room to grow


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
    ("name", "numbers"),
    # Pauses, clocks and a fingerprint, and numbers of updates that were not sent before.
    [("periodic", 5 + 2 * 3), ("model", 5 + 2), ("elastic", 5 + 2 * 3)],
)
def test_bytes_are_those_of_a_ring_and_of_exchanged_numbers(name, numbers, digits, client):
    frame = net_of(STRATEGIES[name], client, max_epochs=1).fit(*digits).updates_frame()
    model = 4 * (64 * 32 + 32 + 2 * 32 + 32 * 10 + 10 + 2 * 32) + 8
    averaged = frame["spread"].notna()
    assert (frame["bytes"][averaged] == ring_bytes(model + 8 * numbers, RANKS)).all()
    assert (frame["bytes"][~averaged] == 0).all()


def test_every_rank_has_the_average_after_averaging(digits, client, tmp_path):
    seen = []

    class Look(Callback):
        def on_epoch_end(self, net, **kwargs):
            state = net._state_
            assert state.position.epoch == 2 or state.replicas is None  # not before it is needed
            net._collect_replicas()
            replicas = state.replicas.tensors
            seen.append([torch.cat([t.flatten() for t in replica]) for replica in replicas])

    net_of(PeriodicAveraging(1), client, callbacks=[Look()]).fit(*digits)
    assert len(seen) == 2
    for ranks in seen:
        assert len(ranks) == RANKS
        assert all(torch.equal(ranks[0], other) for other in ranks)


class Stop(Callback):
    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch_end(self, net, **kwargs):
        if net.position_.epoch == self.epoch:
            raise KeyboardInterrupt


@EVERY
def test_resuming_equals_never_having_stopped(name, digits, client, tmp_path):
    """A state saved within a period; a cluster continues it, and so do virtual ranks."""
    strategy, data = STRATEGIES[name], (digits[0][:500], digits[1][:500])
    kept = {}

    class Save(Callback):
        def on_epoch_end(self, net, **kwargs):
            if net.position_.epoch == 1:
                net.save_state(tmp_path / "state")
                kept["since"] = net._state_.averaging.since

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
    assert 0 < net.position_.update < len(X) // (20 * RANKS)
    assert parameters_of(net).isfinite().all()


def test_more_ranks_than_rows_are_not_used(client):
    X, y = np.zeros((4, 64), "float32"), np.array([0, 1, 0, 1])
    net = net_of(PeriodicAveraging(2), client, train_split=None, max_epochs=1).fit(X, y)
    assert set(net.updates_frame()["ranks"]) == {2}  # BatchNorm wants two rows


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
