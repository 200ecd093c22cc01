"""A worker that dies at every update, every message and every exchange of its rank."""

import pytest
import torch
from distributed import Client

from accelerando.testing import WorkerDeath, every_fault
from tests._cluster.helpers import cluster_of
from tests.leftovers import check_nothing_left
from tests.nets import classifier, parameters_of

TOLERANCE = {"rtol": 1e-3, "atol": 5e-5}


def net_of(client, **params):
    settings = {"max_epochs": 2, "batch_size": 100, "rank_timeout": 2.0, "examples_per_worker": 16}
    return classifier(client=client, **{**settings, **params})


@pytest.fixture(scope="module")
def few(digits):
    return digits[0][:200], digits[1][:200]


@pytest.fixture(scope="module")
def cluster():
    with cluster_of(2) as cluster, Client(cluster) as client:
        yield client


@pytest.mark.parametrize("place", ["update", "message", "collective"])
def test_a_death_at_any_step_changes_nothing(cluster, few, place):
    expected = parameters_of(net_of(None).fit(*few))
    net_of(cluster).fit(*few)  # PyTorch is imported, the data are placed
    deaths = 0

    def fault(at):
        cluster.wait_for_workers(2)
        worker = sorted(cluster.scheduler_info()["workers"])[at % 2]
        return WorkerDeath(cluster, worker, at, place)

    for death in every_fault(fault):
        net = net_of(cluster)
        with death:
            net.fit(*few)
        torch.testing.assert_close(parameters_of(net), expected, **TOLERANCE)
        assert net.updates_frame()["update"].tolist() == [1, 2, 3, 4]
        if death.happened:
            deaths += 1
            assert any(entry["event"] == "lost" for entry in net.world_log_), death.at
    assert deaths >= 3
    check_nothing_left(cluster)
