"""``compression=``: what ranks exchange, that they agree, and what it costs; real processes."""

import os
import signal
import time

import numpy as np
import pytest
import torch
from distributed import Client
from skorch.callbacks import Callback

from accelerando.batch_size import GeoDamp
from accelerando.compress import (
    QSGD,
    Adaptive,
    Atomo,
    ErrorFeedback,
    HalfPrecision,
    PowerSGD,
    TernGrad,
    TopK,
)
from accelerando.compress._retired import SignSGD
from accelerando.exceptions import UnsupportedError
from tests._cluster.helpers import cluster_of
from tests.nets import MLP, Gated, classifier, parameters_of

CODECS = {
    "atomo": Atomo(budget=3),
    "atomo, bytes": Atomo(share=0.1),
    "qsgd": QSGD(bits=4),
    "qsgd, one bucket": QSGD(bits=2, bucket=None),
    "terngrad": TernGrad(bucket=256),
    "top-k": ErrorFeedback(TopK(0.1)),
    "sign": ErrorFeedback(SignSGD()),
    "half": ErrorFeedback(HalfPrecision()),
    "power": PowerSGD(rank=2, start=2),
    "adaptive": Adaptive(QSGD(bits=1), lambda signals: {"bits": 2 + signals.epoch}),
}


class Wide(MLP):
    def __init__(self, **kwargs):
        super().__init__(hidden=128, **kwargs)


class Paced(Wide):
    def forward(self, x):
        time.sleep(0.003)
        return super().forward(x)


def net_of(client, module=Wide, **params):
    settings = {"batch_size": 64, "max_epochs": 4, "lr": 0.5, "train_split": None}
    ranks = {"examples_per_worker": 32, "min_workers": 2, "max_workers": 2}
    return classifier(module, client=client, **{**settings, **ranks, **params})


@pytest.fixture(scope="module")
def plain(client, digits):
    return net_of(client).fit(*digits)


@pytest.mark.parametrize("name", CODECS)
def test_two_ranks_learn_with_fewer_bytes(name, client, digits, plain):
    net = net_of(client, compression=CODECS[name]).fit(*digits)
    frame, whole = net.updates_frame(), plain.updates_frame()
    assert (frame["ranks"] == 2).all()
    # The first update tells how long messages are; PowerSGD begins after two of its own.
    later = frame["bytes"].iloc[4:]
    assert later.max() < 0.7 * whole["bytes"].max()
    if name != "power":
        assert (frame[["encode_seconds", "decode_seconds"]] > 0).all(axis=None)
    assert frame["loss"].iloc[-10:].mean() < 0.7 * frame["loss"].iloc[:5].mean()


def test_a_run_can_be_repeated_bit_for_bit(client, digits):
    """Ranks that did not agree would have drifted apart, and their losses with them."""
    first = net_of(client, compression=QSGD(bits=2)).fit(*digits)
    second = net_of(client, compression=QSGD, compression__bits=2).fit(*digits)
    assert torch.equal(parameters_of(first), parameters_of(second))


def _parameters_of_every_rank(dask_worker):
    import gc

    from accelerando._cluster.worker.rank import Rank

    ranks = [thing for thing in gc.get_objects() if isinstance(thing, Rank) and thing.group]
    return [bytes(parameters_of(rank.trained.net).numpy()) for rank in ranks]


class Compare(Callback):
    """Look between two epochs at the parameters that the ranks hold."""

    def on_epoch_end(self, net, **kwargs):
        found = net.client.run(_parameters_of_every_rank)
        self.seen_ = [held for ranks in found.values() for held in ranks]


@pytest.mark.parametrize("name", ["atomo", "qsgd", "top-k", "power"])
def test_ranks_agree_bit_for_bit(name, client, digits):
    net = net_of(client, compression=CODECS[name], max_epochs=2, callbacks=[("look", Compare())])
    net.fit(*digits)
    seen = dict(net.callbacks_)["look"].seen_
    assert len(seen) == 2
    assert len(set(seen)) == 1


def test_many_buckets_batchnorm_and_a_batch_that_grows(client, digits):
    # 1.8 MB of gradients: more than DDP's first bucket holds.
    net = net_of(
        client, MLP, module__hidden=6000, module__norm=True, lr=0.01, compression=QSGD(bits=8),
        batch_size=GeoDamp(initial=32, delay=1, factor=2), min_workers=1, max_workers=3,
    )  # fmt: skip
    net.fit(*digits)
    frame = net.updates_frame()
    assert frame["ranks"].min() == 1
    assert frame["ranks"].max() > 1
    assert frame["loss"].iloc[-1] < frame["loss"].iloc[0]
    # A single rank sends nothing, and steps with what it would have sent.
    alone = frame[frame["ranks"] == 1]
    assert (alone["bytes"] == 0).all()
    assert (alone["encode_seconds"] > 0).all()


@pytest.mark.parametrize("codec", [QSGD(bits=8), PowerSGD()], ids=["QSGD", "PowerSGD"])
def test_parameters_without_a_gradient(client, digits, codec):
    net = net_of(client, module=Gated, compression=codec).fit(*digits)
    frame = net.updates_frame()
    assert (frame["bytes"] > 0).all()
    assert frame["loss"].iloc[-5:].mean() < frame["loss"].iloc[:5].mean()


def test_a_lost_rank_does_not_end_training(cold, digits):
    with cluster_of(3) as cluster, Client(cluster) as client:
        pids = list(client.run(os.getpid).values())

        class Kill(Callback):
            def on_epoch_begin(self, net, **kwargs):
                if net.position_.epoch == 1:
                    os.kill(pids[0], signal.SIGKILL)

        net = net_of(
            client, module=Paced, compression=CODECS["top-k"], max_workers=3, min_workers=3,
            callbacks=[("kill", Kill())], rank_timeout=2.0,
        )  # fmt: skip
        net.fit(*digits)
        frame = net.updates_frame()
        assert frame["epoch"].max() == 4
        assert np.isfinite(frame["loss"]).all()
        assert frame["loss"].iloc[-10:].mean() < frame["loss"].iloc[:5].mean()


def test_error_feedback_and_several_gradients_are_refused_on_ranks(client, digits):
    with pytest.raises(UnsupportedError, match="LBFGS evaluates gradients several times"):
        net_of(
            client, compression=PowerSGD(), optimizer=torch.optim.LBFGS, lr=0.1, batch_size=-1
        ).fit(*digits)
