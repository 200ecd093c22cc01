"""Monitors and policies on several ranks: seen together, decided alike, carried out everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from accelerando.exceptions import ClusterError
from accelerando.monitor import (
    CommunicationTime,
    GradientNoiseScale,
    GradientVariance,
    LossTrend,
    Throughput,
)
from accelerando.policies import Decision, LinearScaling, NoiseScale
from tests.nets import Gated, classifier, parameters_of, regressor

ALL = [GradientNoiseScale(), GradientVariance(memory=1e6), LossTrend(), Throughput()]


def per_row_gradients(net, X, y):
    error = 2 * (net.module_(torch.from_numpy(X)).detach() - torch.from_numpy(y))
    return torch.cat([error * torch.from_numpy(X), error], dim=1).double()


def test_the_noise_scale_of_ranks_is_the_exact_one(line, client):
    """With three ranks and twenty rows the shards are uneven."""
    X, y = line
    net = regressor(
        lr=0.0, batch_size=20, max_epochs=30, monitors=ALL,
        client=client, min_workers=3, max_workers=3,
    ).fit(X, y)  # fmt: skip
    gradients = per_row_gradients(net, X, y)
    mean = gradients.mean(dim=0)
    variance = float(((gradients - mean) ** 2).sum() / (len(gradients) - 1))
    last = net.updates_frame().iloc[-1]
    assert last["gradient_variance"] == pytest.approx(variance, rel=0.15)
    assert last["noise_scale"] == pytest.approx(variance / float(mean.dot(mean)), rel=0.2)


class Wide(nn.Module):
    """Two megabytes of parameters: DDP needs several buckets."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 64), nn.Tanh())
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last(self.net(x))


@pytest.mark.parametrize("module", [Wide, Gated], ids=["several buckets", "without DDP"])
def test_every_way_of_adding_up_sees_the_same_parts(module, digits, client):
    """Against two micro-batches with the same rows as the two ranks, in this process."""
    X, y = digits[0][:128], digits[1][:128]
    settings = {
        "module": module, "batch_size": 128, "max_epochs": 4, "lr": 0.01,
        "monitors": [GradientVariance(memory=1)], "train_split": None,
        "iterator_train__shuffle": False,
    }  # fmt: skip
    ranks = classifier(client=client, min_workers=2, max_workers=2, **settings).fit(X, y)
    order = np.r_[0:128:2, 1:128:2]  # rank 0 has the even rows, rank 1 the odd ones
    alone = classifier(micro_batch_size=64, **settings).fit(X[order], y[order])
    for name in ("gradient_variance", "gradient_square", "loss"):
        np.testing.assert_allclose(
            ranks.updates_frame()[name], alone.updates_frame()[name], rtol=1e-3
        )


def test_clocks_are_those_of_all_ranks(digits, client):
    net = classifier(
        monitors=[Throughput(), CommunicationTime()], client=client, min_workers=2, max_workers=2
    ).fit(*digits)
    frame = net.updates_frame()
    assert np.isnan(frame["examples_per_second"].iloc[0]), "an update is told by the next one"
    assert (frame["examples_per_second"].iloc[2:7] > 0).all()
    assert frame["communication_share"].iloc[-1] <= 1.0


def test_decisions_that_follow_agreed_signals_do_not_depend_on_the_ranks(digits, client):
    def decide(signals):
        if signals.update == 4:
            return Decision(batch_size=48, lr=0.05, momentum=0.5)
        return Decision(lr=signals.lr / 2) if signals.loss < 2.2 and signals.lr > 0.02 else None

    def fit(**where):
        settings = {"optimizer__momentum": 0.9, "batch_size": 32, "max_epochs": 3}
        return classifier(policies=[decide, LinearScaling()], **settings, **where).fit(*digits)

    alone, together = fit(), fit(client=client, min_workers=3, max_workers=3)
    torch.testing.assert_close(parameters_of(together), parameters_of(alone), rtol=1e-4, atol=2e-5)
    assert together.updates_frame()["batch_size"].equals(alone.updates_frame()["batch_size"])
    assert alone.updates_frame()["lr"].nunique() > 2


def test_the_noise_scale_policy_on_ranks(digits, client):
    net = classifier(
        batch_size=NoiseScale(initial=16, dwell=5), max_epochs=6,
        client=client, min_workers=2, max_workers=2,
    ).fit(*digits)  # fmt: skip
    assert net.updates_frame()["batch_size"].max() >= 64
    assert net.updates_frame().groupby("epoch")["batch_size"].sum().tolist() == [480] * 6
    more, held = net.position_.update, net._state_.settings.batch_size
    net.set_params(max_epochs=1).partial_fit(*digits)
    frame = net.updates_frame()
    # One decision changes it at most by a factor of two.
    assert held / 2 <= frame["batch_size"].iloc[more] <= 2 * held
    assert frame["noise_scale_low"].iloc[more:].notna().all(), "the memory was lost"


def test_ranks_that_decide_alone_are_found_out(digits, client):
    def decide(signals):
        import os

        return Decision(batch_size=16 + os.getpid() % 97)

    with pytest.raises(ClusterError, match="decided differently on different ranks"):
        classifier(policies=[decide], client=client, min_workers=2, max_workers=2).fit(*digits)


def test_a_policy_and_the_batch_bound_the_ranks_together(digits, client):
    def decide(signals):
        return Decision(workers=2 if signals.epoch < 2 else 3)

    net = classifier(
        policies=[decide], client=client, batch_size=64, examples_per_worker=16,
        min_workers=1, max_workers=4, max_epochs=8,
    ).fit(*digits)  # fmt: skip
    told = [event["text"] for event in net.world_log_]
    ranks = net.updates_frame().groupby("epoch")["ranks"].last()
    assert ranks.loc[2] == 2, told
    assert ranks.iloc[-1] in (2, 3), told
    assert any("a policy allows 2" in text for text in told), told
    assert set(net.updates_frame()["workers"]) == {2.0, 3.0}
