"""Decisions survive what happens to ranks: kills, a resume from a checkpoint, fewer and more."""

import numpy as np
import pytest
import torch
from distributed import Client

from accelerando.monitor import LossTrend
from accelerando.policies import Decision, Every, PlateauPolicy
from tests._cluster.helpers import (
    Paced,
    Wait,
    cluster_of,
    kill_member,
    when,
)
from tests.leftovers import check_nothing_left
from tests.nets import classifier, parameters_of

TOLERANCE = {"rtol": 1e-3, "atol": 5e-5}
# Never content, so that last digits do not matter; when it was asked last, and what the loss was
# on average, are memories that must not get lost.
POLICIES = [
    PlateauPolicy(patience=25, progress=0.95, decay=0.8),
    Every(lambda signals: Decision(momentum=0.5 + 0.1 * signals.epoch), epochs=2),
]


def net_of(client, **params):
    settings = {
        "policies": POLICIES, "monitors": [LossTrend(memory=30)], "batch_size": 16,
        "max_batch_size": 64, "optimizer__momentum": 0.5, "lr": 0.02, "max_epochs": 5,
        "train_split": None, "rank_timeout": 2.0, "min_workers": 3, "max_workers": 3,
    }  # fmt: skip
    return classifier(Paced, client=client, **{**settings, **params})


@pytest.fixture(scope="module")
def quiet(digits):
    net = net_of(None, module__seconds=0.0).fit(*digits)
    frame = net.updates_frame()
    assert frame["batch_size"].iloc[[0, -2]].tolist() == [16, 64], "nothing was decided"
    assert frame["lr"].nunique() > 3
    return net


def check_equal(net, quiet):
    torch.testing.assert_close(parameters_of(net), parameters_of(quiet), **TOLERANCE)
    frame, expected = net.updates_frame(), quiet.updates_frame()
    for column in ("update", "epoch", "examples", "batch_size"):
        assert frame[column].tolist() == expected[column].tolist()
    for column in ("lr", *LossTrend.signals):
        np.testing.assert_allclose(frame[column], expected[column], rtol=1e-3, atol=1e-5)
    decided, wanted = net._state_.settings, quiet._state_.settings
    assert decided.lr_scale == pytest.approx(wanted.lr_scale)
    assert decided.scales == pytest.approx(wanted.scales)
    exact = {"lr_scale": 1.0, "scales": ()}
    assert decided._replace(**exact) == wanted._replace(**exact)


def test_a_killed_rank_changes_no_decision(digits, quiet):
    with cluster_of(3) as cluster, Client(cluster) as client:
        net = net_of(client)
        killer = when(net, 40, lambda: kill_member(client, net, 0))
        net.fit(*digits)
        killer.join()
        assert any(entry["event"] == "lost" for entry in net.world_log_)
        check_equal(net, quiet)


def test_a_checkpoint_continues_with_the_decisions_made_before(client, digits, quiet, tmp_path):
    first = net_of(client, checkpoint=tmp_path, checkpoint_every=5, module__broken_at=58)
    with pytest.raises(LookupError, match="own trouble"):
        first.fit(*digits)
    second = net_of(client, checkpoint=tmp_path, min_workers=2, max_workers=2).fit(*digits)
    ranks = second.updates_frame()["ranks"]
    assert ranks.iloc[[0, -1]].tolist() == [3, 2], "it began anew"
    check_equal(second, quiet)


def decide(signals):
    """Fewer ranks in the second epoch, and as many as before from the fourth on."""
    return Decision(workers={0: 3, 1: 1, 2: 1}.get(int(signals.epoch), 3))


def up_and_down(client, most, digits):
    all_there = len(client.nthreads()) >= most  # others join whenever their process has started
    net = classifier(
        policies=[decide], client=client, batch_size=48, examples_per_worker=16,
        max_workers=most, max_epochs=6, callbacks=[("wait", Wait())],
    ).fit(*digits)  # fmt: skip
    alone = classifier(policies=[decide], batch_size=48, max_epochs=6).fit(*digits)
    torch.testing.assert_close(parameters_of(net), parameters_of(alone), **TOLERANCE)
    frame, told = net.updates_frame(), [entry["text"] for entry in net.world_log_]
    # A decision comes with the first update of an epoch, so it holds in the next one for certain.
    by_epoch = frame.groupby("epoch")["ranks"].agg(["min", "max"])
    assert by_epoch.loc[1].tolist() == [most, most] or not all_there, told
    assert by_epoch.loc[3].tolist() == [1, 1], told
    assert by_epoch.loc[5:].to_numpy().tolist() == [[most, most]] * 2, told
    assert any("a policy allows 1" in text for text in told), told
    assert any("a policy allows 3" in text for text in told), told


def test_a_policy_that_wants_more_ranks_again_gets_them(client, digits):
    up_and_down(client, 3, digits)
    check_nothing_left(client)


def test_workers_that_were_given_back_are_asked_for_again(digits):
    with cluster_of(1) as cluster, Client(cluster) as client:
        up_and_down(client, 2, digits)
        assert len(cluster.worker_spec) == 1
