"""Ranks that average parameters, and that join, leave, stop and die."""

import os
import signal

import numpy as np
import pytest
import torch
from distributed import Client

from accelerando.compress import ErrorFeedback, TopK
from accelerando.policies import Decision
from accelerando.sync import ModelAveraging, OuterOptimizer, PeriodicAveraging
from tests._cluster.helpers import Paced, cluster_of, kill_for_good, when
from tests._cluster.test_averaging import same_records
from tests.nets import classifier, parameters_of

RANKS = 3
STRATEGIES = {
    "periodic": PeriodicAveraging(20),  # not a divisor of the 50 updates of an epoch
    "model": ModelAveraging(RANKS, momentum=0.3),
    "outer": OuterOptimizer(inner_steps=5, lr=0.8, momentum=0.5),
}


def paced(client, sync, **params):
    settings = {
        "batch_size": 16,
        "optimizer__momentum": 0.5,
        "lr": 0.1,
        "max_epochs": 20,
        "rank_timeout": 2.0,
        "random_state": 0,
        "module__seconds": 0.005,
    }
    return classifier(Paced, client=client, sync=sync, **{**settings, **params})


@pytest.fixture(scope="module")
def longer(digits):
    """Epochs that are long compared with the time between them."""
    return np.concatenate([digits[0]] * 5), np.concatenate([digits[1]] * 5)


COMPRESSED = {"compression": ErrorFeedback(TopK(0.1))}
TWO_PHASES = {**COMPRESSED, "module__hidden": 128}  # with four ranks or more


@pytest.mark.parametrize(
    ("name", "params", "workers"),
    [
        *((name, {}, RANKS) for name in STRATEGIES),
        ("periodic", COMPRESSED, RANKS),
        ("outer", COMPRESSED, RANKS),
        ("outer", TWO_PHASES, 5),
    ],
    ids=[*STRATEGIES, "periodic, compressed", "outer, compressed", "outer, two phases"],
)
def test_a_killed_rank_loses_only_its_own_steps(name, params, workers, longer):
    # A client of the address cannot ask for another worker, which may come before an update.
    with cluster_of(workers) as cluster, Client(cluster.scheduler_address) as client:
        net = paced(client, STRATEGIES[name], max_epochs=6, **params)
        thread = when(net, 20, lambda: kill_for_good(cluster))
        net.fit(*longer)
        thread.join()
    frame = net.updates_frame()
    assert frame["update"].tolist() == list(range(1, len(frame) + 1))
    if workers == RANKS:
        assert frame["ranks"].min() == workers - 1
    else:  # some leave a moment before the others, and join them again
        assert frame["ranks"].iloc[-1] == workers - 1
    assert frame["loss"].iloc[-20:].mean() < 0.7 * frame["loss"].iloc[:20].mean()
    assert net.score(*longer) > 0.7
    logged = [event["text"] for event in net.world_log_ if event["event"] == "unaveraged"]
    # With separate messages to each rank some may have finished an averaging during which one died.
    assert len(logged) == 1 or (workers > RANKS and not logged)
    assert all("what the others did is kept" in text for text in logged)
    # Nobody starts from the last average: the loss continues where it was.
    at = frame.index[frame["ranks"] == workers - 1][0]
    assert frame["loss"][at : at + 5].mean() < 1.5 * frame["loss"][at - 10 : at].mean()


@pytest.mark.parametrize("epoch", [3.0, 3.5], ids=["between epochs", "within one"])
def test_other_ranks_continue_from_the_average(epoch, longer):
    """Workers join during training; a policy releases some, at once or with an epoch."""
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
        # Before or between, ranks have averaged, whatever the period.
        assert frame["averagings"][at + 1] > frame["averagings"][at - 1]
        assert frame["loss"][at + 1 : at + 6].mean() < 1.5 * frame["loss"][at - 9 : at + 1].mean()
    assert net.score(*longer) > 0.7


def nothing(signals):
    return None


@pytest.mark.parametrize(
    ("sync", "policies", "params"),
    # Policies make ranks exchange numbers in every update, so that they stop in the middle of a
    # period. Those that a center pulls have not sent their last step.
    [
        (PeriodicAveraging(1000), [nothing], {}),
        (ModelAveraging(2), [], {}),
        (PeriodicAveraging(40), [nothing], COMPRESSED),  # stops after one averaging
    ],
    ids=["periodic", "model", "compressed"],
)
def test_ctrl_c_and_continuing_is_exact(sync, policies, params, digits):
    with cluster_of(2) as cluster, Client(cluster) as client:
        settings = {"policies": policies, "max_epochs": 8, "module__seconds": 0.01, **params}
        whole = paced(client, sync, **settings).fit(*digits)
        net = paced(client, sync, **settings)
        thread = when(net, 50, lambda: os.kill(os.getpid(), signal.SIGINT))
        net.fit(*digits)
        thread.join()
        stopped = net.position_.update
        assert 50 <= stopped < len(whole.updates_frame())
        since = stopped % sync.period if policies else 1
        assert net._state_.averaging.since == since > 0
        net.partial_fit(*digits)
    assert torch.equal(parameters_of(net), parameters_of(whole))
    same_records(net, whole)


def test_replicas_are_added_while_they_pay(digits):
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
